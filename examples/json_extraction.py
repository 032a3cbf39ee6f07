"""Take facts out of a text, as JSON of a schema."""

import json

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "capital": {"type": "string", "maxLength": 20},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
    },
    "required": ["capital", "continent"],
    "additionalProperties": False,
}

client = OpenAI()
answer = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Paris is the capital of France, which lies in Europe. Give the facts as JSON."}],
    response_format={"type": "json_schema", "json_schema": {"name": "facts", "schema": SCHEMA}},
    temperature=0,
    max_tokens=60,
)
facts = json.loads(answer.choices[0].message.content)
print(f"The capital is {facts['capital']}; the continent is {facts['continent']}.")
