"""Structured output and forced calls, from the OpenAI client to the real model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.e2e.conftest import KEY, MODEL
from tests.grammar.schemas import SCHEMAS, record, validate
from tests.server.process import ServerProcess

MESSAGES: list[Any] = [{"role": "user", "content": "Ann is 7 years old. Answer in JSON."}]
NAMES = ["record", "nested", "recursive", "list of records", "any of", "date"]
GOLDEN = {"messages": [{"role": "user", "content": "Say hi"}], "temperature": 0, "max_tokens": 8}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "remember",
        "parameters": record(name={"enum": ["Ann", "Bob"]}),
    },
}


@pytest.fixture(scope="module")
def client(octavo: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{octavo.address}/v1", api_key=KEY, max_retries=0)


def schema_format(name: str) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMAS[name], "strict": True}}


def test_schemas_streamed_and_not_alone_and_together(client: openai.OpenAI) -> None:
    def ask(name: str, stream: bool) -> tuple[str, str | None]:
        body = {"model": MODEL, "messages": MESSAGES, "temperature": 0.8, "seed": 5, "max_tokens": 60}
        answer = client.chat.completions.create(**body, response_format=schema_format(name), stream=stream)
        if not stream:
            return answer.choices[0].message.content, answer.choices[0].finish_reason
        choices = [chunk.choices[0] for chunk in answer if chunk.choices]
        return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason

    alone = {name: ask(name, False) for name in NAMES}
    with ThreadPoolExecutor(len(NAMES)) as threads:
        together = dict(zip(NAMES, threads.map(lambda name: ask(name, True), NAMES), strict=True))
    assert together == alone
    finished = {name: text for name, (text, reason) in alone.items() if reason == "stop"}
    assert len(finished) >= 4
    for name, text in finished.items():
        validate(json.loads(text), SCHEMAS[name])


def test_other_kinds(client: openai.OpenAI) -> None:
    def text(**more: Any) -> str:
        answer = client.completions.create(model=MODEL, prompt="The sky is", temperature=0, max_tokens=20, extra_body=more)
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].text

    assert text(structured_outputs={"choice": [" green", " red"]}) in (" green", " red")
    assert text(structured_outputs={"regex": " [a-z]{2,6}!"}).endswith("!")
    assert text(structured_outputs={"grammar": 'root ::= " very " ("blue" | "grey")'}) in (" very blue", " very grey")
    content = {"type": "regex", "pattern": "[a-z]{3}"}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": " <c>", "content": content, "end": "</c>"}}
    assert len(text(response_format=tag)) == len(" <c>abc</c>")


def test_beams(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "n": 3, "logprobs": 1}
    beams = client.completions.create(**body, extra_body={"use_beam_search": True})
    greedy = client.completions.create(**{**body, "n": 1}, temperature=0)
    totals = [sum(choice.logprobs.token_logprobs) for choice in beams.choices]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] >= sum(greedy.choices[0].logprobs.token_logprobs) - 1e-5
    assert len({choice.text for choice in beams.choices}) == 3
    assert beams.usage.completion_tokens == 12


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "remember"}}, "stop")],
)
def test_c40_forced_calls(client: openai.OpenAI, choice: Any, reason: str) -> None:
    """Though the server looks for no calls of its own: a grammar puts them into a form of ours."""
    body = {"model": MODEL, "messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "temperature": 1, "seed": 3}
    answer = client.chat.completions.create(**body, max_tokens=120, parallel_tool_calls=False).choices[0]
    assert answer.finish_reason == reason
    (call,) = answer.message.tool_calls
    assert call.function.name == "remember"
    validate(json.loads(call.function.arguments), TOOL["function"]["parameters"])
    with client.chat.completions.stream(**body, max_tokens=120, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [call.function.arguments]
    cut = client.chat.completions.create(**body, max_tokens=3).choices[0]
    assert cut.finish_reason == "length"


def test_c62_hostile_grammars_disturb_nobody(octavo: ServerProcess) -> None:
    """Each is refused; a golden request between them has the golden answer; the engine is the same as before."""
    golden = octavo.http.post("/v1/chat/completions", json=GOLDEN).json()["choices"]
    circle = "start: " + " | ".join(f"r{i}" for i in range(2000)) + "\n"
    circle += "\n".join(f'r{i}: r{(i + 1) % 2000} r{(i + 7) % 2000} | "a"' for i in range(2000))
    deep: Any = {}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    wide = {"anyOf": [{"type": "object", "properties": {f"a{i}": {}}, "required": [f"a{i}"]} for i in range(3000)]}
    one = [[{"properties": {f"a{i}{j}": {}}, "required": [f"a{i}{j}"]} for i in range(6)] for j in range(9)]
    product = {"allOf": [{"anyOf": branches} for branches in one]}
    for structured in (
        {"regex": "["},
        {"regex": "(?:(?:(?:(?:a?){100}){100}){100})b"},
        {"json": {"type": "banana"}},
        {"json": "not json"},
        {"json": deep},
        {"json": wide},
        {"json": product},
        {"json_object": False},
        {"grammar": circle},
        {"grammar": "start: " + "(" * 50_000},
        {"choice": []},
    ):
        response = octavo.http.post("/v1/chat/completions", json={**GOLDEN, "structured_outputs": structured})
        expected = (
            (200, 400) if structured.get("grammar") == circle else (400,)
        )  # in some builds of the library it can be built
        assert response.status_code in expected, (structured, response.text)
        assert octavo.http.post("/v1/chat/completions", json=GOLDEN).json()["choices"] == golden
    assert octavo.http.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_constraints_that_contradict_one_another_are_the_clients_mistake(client: openai.OpenAI, stream: bool) -> None:
    """Each can be met; all together leave no token. Nothing is wrong with the server, and nobody should try again."""
    more = {"structured_outputs": {"choice": ["yes"]}, "bad_words": ["y", "ye", "yes"]}
    with pytest.raises(openai.BadRequestError, match="no token is left") as refused:
        list(client.chat.completions.create(model=MODEL, **GOLDEN, stream=stream, extra_body=more))
    assert refused.value.body["type"] == "BadRequestError"
    assert client.chat.completions.create(model=MODEL, **GOLDEN).choices[0].message.content
