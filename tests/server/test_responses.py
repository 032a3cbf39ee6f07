"""OpenAI's Responses API, asked by their own SDK and as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from octavo.engine.intake import Intake
from octavo.server.responses.store import ResponseStore, Stored
from tests.scripted import Script
from tests.server.conversing import call_text, conversing, script
from tests.server.running import ByRequestId, RunningServer, running

ASK = "How is the weather?"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False},
    {"type": "function", "name": "now", "parameters": {"type": "object"}, "strict": False},
]
UNLIKE = {"id", "created_at", "call_id"}  # from one time to the next


@pytest.fixture(scope="module")
def server(intake: Intake) -> Iterator[RunningServer]:
    with conversing(intake, reasoning_parser="deepseek_r1") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(server: RunningServer, client: openai.OpenAI, said: str, **more: Any) -> Any:
    """The response of a model that says this text, the same whole and put together from a stream by the SDK."""
    body: dict[str, Any] = {"model": "m", "input": ASK, **more}
    ends = "max_output_tokens" not in body
    whole = client.responses.create(**body, extra_headers={"x-request-id": script(server, said, ends=ends)})
    with client.responses.stream(**body, extra_headers={"x-request-id": script(server, said, ends=ends)}) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert events[-1].type == f"response.{last.status}"
    assert alike(last.to_dict()) == alike(whole.to_dict())
    check_items(events, last)
    return whole


def alike(value: Any) -> Any:
    """Without what is new each time, and without what the SDK adds when it parses."""
    if isinstance(value, list):
        return [alike(each) for each in value]
    if not isinstance(value, dict):
        return value
    own = {name: alike(each) for name, each in value.items() if name not in UNLIKE and not name.startswith("parsed")}
    return {**own, "input_tokens_details": None} if "input_tokens_details" in own else own


def check_items(events: list[Any], response: Any) -> None:
    """Each item is added, filled by deltas that make up its text, and done, one after the other."""
    for index, item in enumerate(response.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        assert (own[0].type, own[-1].type) == ("response.output_item.added", "response.output_item.done")
        text = "".join(event.delta for event in own if event.type.endswith(".delta"))
        assert text == (item.arguments if item.type == "function_call" else "".join(part.text for part in item.content))
        assert own[-1].item.id == item.id
    order = [event.output_index for event in events if getattr(event, "output_index", None) is not None]
    assert order == sorted(order)


def test_text(server: RunningServer, client: openai.OpenAI) -> None:
    response = ask(server, client, "</think>Fine, 🙂.", instructions="Be brief.", metadata={"a": "b"})
    assert response.output_text == "Fine, 🙂."
    assert [item.type for item in response.output] == ["message"]
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_thoughts_and_calls(server: RunningServer, client: openai.OpenAI) -> None:
    calls = call_text("weather", {"city": "Zürich"}) + call_text("now", {})
    response = ask(server, client, "Let me see.</think>I look. " + calls, tools=TOOLS)
    thought, message, weather, now = response.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "Let me see.", [])
    assert message.content[0].text == "I look. "
    assert [(call.name, json.loads(call.arguments)) for call in (weather, now)] == [
        ("weather", {"city": "Zürich"}),
        ("now", {}),
    ]
    assert weather.call_id != now.call_id
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_a_cut_answer_is_incomplete(server: RunningServer, client: openai.OpenAI) -> None:
    response = ask(server, client, "</think>One two three four", max_output_tokens=6)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"
    assert ask(server, client, "</think>").output_text == ""


def test_logprobs_go_with_the_text(server: RunningServer, client: openai.OpenAI) -> None:
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    thought, message = ask(server, client, "Let me think about it.</think>One two three", **more).output
    assert thought.type == "reasoning"
    logprobs = message.content[0].logprobs
    assert "".join(each.token for each in logprobs) == "</think>One two three"  # the mark's tokens wait for a text


def test_formats_of_text(server: RunningServer, client: openai.OpenAI) -> None:
    assert ask(server, client, "</think>{}", text={"format": {"type": "text"}}).output_text == "{}"
    with pytest.raises(openai.BadRequestError, match="json_schema"):
        client.responses.create(model="m", input=ASK, text={"format": {"type": "json_schema", "name": "x"}})


def test_reasoning_may_be_left_out(server: RunningServer, client: openai.OpenAI) -> None:
    response = ask(server, client, "Let me see.</think>Fine.", extra_body={"include_reasoning": False})
    assert [item.type for item in response.output] == ["message"]


def test_a_conversation_goes_on_from_a_stored_response(server: RunningServer, client: openai.OpenAI) -> None:
    first = ask(server, client, "Hm.</think>" + call_text("weather", {"city": "Oslo"}), tools=TOOLS)
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "cold"}
    stored = ask(server, client, "</think>Cold.", previous_response_id=first.id, input=[result], tools=TOOLS)
    given = [{"role": "user", "content": ASK}, *(item.to_dict() for item in first.output), result]
    whole = ask(server, client, "</think>Cold.", input=given, tools=TOOLS, store=False)
    assert stored.usage.input_tokens == whole.usage.input_tokens
    assert stored.output_text == whole.output_text == "Cold."
    again = client.responses.retrieve(stored.id)
    assert again.output_text == "Cold."
    with pytest.raises(openai.NotFoundError, match="not found") as missing:
        client.responses.retrieve(whole.id)
    assert (missing.value.body["type"], missing.value.body["param"]) == ("invalid_request_error", "response_id")


def test_in_the_background(server: RunningServer, client: openai.OpenAI) -> None:
    server.gate.open.clear()
    ids = []
    for text in ("</think>One.", "</think>Two."):
        headers = {"x-request-id": script(server, text)}
        response = client.responses.create(model="m", input=ASK, background=True, extra_headers=headers)
        assert response.status == "queued"
        ids.append(response.id)
    assert client.responses.retrieve(ids[0]).status == "in_progress"
    assert client.responses.cancel(ids[1]).status == "cancelled"
    server.gate.open.set()
    server.until(server.idle)
    assert client.responses.retrieve(ids[0]).output_text == "One."
    assert client.responses.retrieve(ids[1]).status == "cancelled"
    assert client.responses.cancel(ids[0]).status == "completed"
    assert server.state.admission.counts() == {"sequences": 0, "prompt_tokens": 0}


def test_a_failure_is_told_in_the_stream(intake: Intake) -> None:
    with running(intake, Script(row_errors=ByRequestId(bad=3))) as server:
        body = {"input": ASK, "model": "m", "max_output_tokens": 9}
        assert server.post("/v1/responses", body, x_request_id="bad").status_code == 500
        text = server.post("/v1/responses", {**body, "stream": True}, x_request_id="bad").text
        event = json.loads(text.rstrip().rpartition("data: ")[2])
        assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
        assert event["response"]["error"]["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": []}, "empty conversation"),
        ({"input": [{"type": "computer_call"}]}, r"input\[0\].type 'computer_call' is not supported"),
        ({"input": [{"role": "critic", "content": "x"}]}, r"input\[0\].role must be one of"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            r"content\[0\] is of type 'input_image'",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, r"input\[0\].call_id must be text"),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\].type 'web_search' is not supported"),
        ({"truncation": "auto"}, "truncation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"temperature": -1}, "temperature must be non-negative"),
        ({"extra_body": {"timeout": -1}}, "timeout"),
        ({"background": True, "extra_body": {"timeout": 5}}, "background"),
        ({"max_output_tokens": 100_000}, "max_completion_tokens=100000 cannot be greater"),
    ],
)
def test_refusals(client: openai.OpenAI, change: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.responses.create(**{"model": "m", "input": ASK, **change})


def test_an_unknown_previous_response(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="m", input=ASK, previous_response_id="resp_x")
    assert missing.value.body["param"] == "previous_response_id"


class Named:
    def __init__(self, id: str) -> None:
        self.id = id


def test_the_store_is_bounded() -> None:
    store = ResponseStore(max_responses=3, max_bytes=100)
    for id in "abc":
        store.put(Stored(Named(id), [], 10))
    assert store.get("a") is not None
    store.put(Stored(Named("d"), [], 10))
    assert [id for id in "abcd" if store.get(id)] == ["a", "c", "d"]
    store.put(Stored(Named("e"), [], 85))
    assert [id for id in "abcde" if store.get(id)] == ["d", "e"]
    newest = Stored(Named("f"), [], 1)
    store.put(newest)
    store.grow(newest, 90)
    assert [id for id in "def" if store.get(id)] == ["f"]
