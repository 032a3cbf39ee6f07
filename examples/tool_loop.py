"""Let the model call a function, give it the result, and print what it makes of it.

The first turn forces a call (`required`), so that any model makes one. With `octavo serve --enable-auto-tool-choice` and a
model that knows tools, `auto` leaves it to the model, and the loop ends when it calls nothing more. (SmolLM2 was
not taught what results of tools are: what it makes of them is no good.)
"""

import json

from openai import OpenAI

CITIES = {"Paris": 21, "Oslo": 4}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "description": "The temperature in a city, in degrees Celsius",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": list(CITIES)}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
FUNCTIONS = {"temperature": lambda city: f"It is {CITIES[city]} degrees Celsius in {city}."}

client = OpenAI()
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "How warm is it in Paris?"}]
choice = "required"
while True:
    answer = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=60,
    )
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        print(message.content)
        break
    for call in message.tool_calls:
        arguments = json.loads(call.function.arguments)
        result = FUNCTIONS[call.function.name](**arguments)
        print(f"{call.function.name}({arguments}) -> {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    choice = "none"
