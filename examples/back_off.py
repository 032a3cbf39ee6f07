"""Wait and ask again while the server is full, loading or away: as its Retry-After says, else twice as long each time.

(The SDK does much of this by itself with `max_retries`; here it is in the open, with jitter so that clients spread out.)
"""

import random
import time

from openai import APIConnectionError, APIStatusError, OpenAI

WORTH_A_RETRY = (429, 503)
client = OpenAI(max_retries=0)


def patiently(ask, attempts=6, first_wait=0.5):
    """The result of `ask()`. Raises what it raised last when all attempts were in vain."""
    for attempt in range(attempts):
        try:
            return ask()
        except (APIStatusError, APIConnectionError) as error:
            response = getattr(error, "response", None)
            if attempt == attempts - 1 or (response is not None and response.status_code not in WORTH_A_RETRY):
                raise
            told = response.headers.get("retry-after") if response is not None else None
            wait = float(told) if told else first_wait * 2**attempt
            time.sleep(wait * random.uniform(1.0, 1.5))


model = patiently(lambda: client.models.list()).data[0].id
prompt = "The capital of France is"
completion = patiently(lambda: client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=8))
print(completion.choices[0].text)
