"""Print an answer as it comes, then what it cost."""

from openai import OpenAI

client = OpenAI()
model = client.models.list().data[0].id
question = [{"role": "user", "content": "What is the capital of France?"}]
events = client.chat.completions.create(
    model=model, messages=question, temperature=0, max_tokens=20, stream=True, stream_options={"include_usage": True}
)
for event in events:
    for choice in event.choices:
        print(choice.delta.content or "", end="", flush=True)
    if event.usage:
        print(f"\n{event.usage.prompt_tokens} tokens in, {event.usage.completion_tokens} out")
