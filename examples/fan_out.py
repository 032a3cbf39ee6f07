"""Ask many questions at once: the server computes them in one batch, and the answers come in order."""

import asyncio

from openai import AsyncOpenAI

COUNTRIES = ("France", "Italy", "Japan", "Egypt", "Peru", "Norway", "Kenya", "Spain")


async def ask(client: AsyncOpenAI, model: str, country: str) -> str:
    question = [{"role": "user", "content": f"What is the capital of {country}?"}]
    answer = await client.chat.completions.create(model=model, messages=question, temperature=0, max_tokens=20)
    return answer.choices[0].message.content or ""


async def main() -> None:
    async with AsyncOpenAI() as client:
        model = (await client.models.list()).data[0].id
        answers = await asyncio.gather(*(ask(client, model, country) for country in COUNTRIES))
    for country, answer in zip(COUNTRIES, answers, strict=True):
        print(f"{country}: {answer}")


asyncio.run(main())
