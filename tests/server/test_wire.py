"""The bytes of answers, member by member and in order, as in a capture of vLLM's (under our name where it says its own)."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

import octavo
from octavo.engine.intake import Intake
from octavo.text.chat_template import ChatTemplate
from tests.server.running import RunningServer, running

HI = [{"role": "user", "content": "Say hi"}]
FINGERPRINT = f"octavo-{octavo.__version__}"


def script(server: RunningServer, id: str, text: str) -> None:
    """Make the request with this X-Request-Id answer with these tokens."""
    tokenizer = server.state.model.intake.tokenizer
    server.outputs[id] = tokenizer.encode(text, add_special_tokens=False)


def normal(body: str) -> str:
    """Without what differs from call to call."""
    body = re.sub(r'"cached_tokens":\d+', '"cached_tokens":0', re.sub(r'"created":\d+', '"created":0', body))
    return re.sub(r"modelperm-[0-9a-f]{16}", "modelperm-ID", body)


CHAT_TAIL = (
    '"service_tier":null,"system_fingerprint":"FINGERPRINT","usage":{"prompt_tokens":32,"total_tokens":%d,"completion_tokens":%d,'
    '"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,'
    '"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
)
CHAT_MESSAGE = (
    '"message":{"role":"assistant","content":"%s","refusal":null,"annotations":null,"audio":null,"function_call":null,'
    '"reasoning":null}'
)
CHAT_HEAD = '{"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,'
COMPLETION_HEAD = '{"id":"cmpl-ID","object":"text_completion","created":0,"model":"m","choices":[{"index":0,'
COMPLETION_TAIL = (
    '"service_tier":null,"system_fingerprint":"FINGERPRINT","usage":{"prompt_tokens":1,"total_tokens":%d,"completion_tokens":%d,'
    '"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,'
    '"metrics":null}'
)
TOKEN_A = '{"token":"I","logprob":-1.0,"bytes":[73],"top_logprobs":[]}'
TOKEN_B = '{"token":"\'m","logprob":-2.0,"bytes":[39,109],"top_logprobs":[]}'

WHOLE = [
    (
        "/v1/chat/completions",
        {"messages": HI, "max_tokens": 5, "temperature": 0},
        "I'm glad to meet",
        CHAT_HEAD
        + CHAT_MESSAGE % "I'm glad to meet"
        + ',"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],'
        + CHAT_TAIL % (37, 5),
    ),
    (
        "/v1/chat/completions",
        {"model": "m", "messages": HI, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 2},
        "I'm",
        CHAT_HEAD
        + CHAT_MESSAGE % "I'm"
        + f',"logprobs":{{"content":[{TOKEN_A},{TOKEN_B}]}}'
        + ',"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],'
        + CHAT_TAIL % (34, 2),
    ),
    (
        "/v1/completions",
        {"model": "m", "prompt": "Hello", "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True},
        "-by-",
        COMPLETION_HEAD + '"text":"Hello-by-","logprobs":{"text_offset":[0,5,6,8],"token_logprobs":[null,-1.0,-2.0,-3.0],'
        '"tokens":["Hello","-","by","-"],"top_logprobs":[null,{"-":-1.0},{"by":-2.0},{"-":-3.0}]},'
        '"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":[null],"prompt_token_ids":null,"routed_experts":null}],'
        + COMPLETION_TAIL
        % (4, 3),
    ),
    (
        "/v1/completions",
        {"model": "m", "prompt": "Hello", "max_tokens": 2, "temperature": 0, "prompt_logprobs": 1, "return_token_ids": True},
        "-by",
        COMPLETION_HEAD + '"text":"-by","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[29,1717],'
        '"prompt_logprobs":[null],"prompt_token_ids":[19556],"routed_experts":null}],' + COMPLETION_TAIL % (3, 2),
    ),
]


@pytest.mark.parametrize(("path", "body", "text", "expected"), WHOLE)
def test_whole_answers(server: RunningServer, path: str, body: Any, text: str, expected: str) -> None:
    script(server, "ID", text)
    response = server.post(path, body, x_request_id="ID")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert normal(response.text) == expected.replace("FINGERPRINT", FINGERPRINT)


CHUNK = '{"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,"model":"m","choices":['
USAGE = '"usage":{"prompt_tokens":32,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
ROLE = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
MIDDLE = '{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
LAST = '{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]'
TEXT_CHUNK = '{"id":"cmpl-ID","object":"text_completion","created":0,"model":"m","choices":['
TEXT = (
    '{"index":0,"text":"%s","logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
)

STREAMS = [
    (
        "/v1/chat/completions",
        {
            "messages": HI,
            "max_tokens": 3,
            "temperature": 0,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        "I'm glad",
        [
            CHUNK + ROLE + "," + USAGE % (32, 0) + ',"prompt_token_ids":null,"prompt_text":null}',
            CHUNK + MIDDLE % "I" + "," + USAGE % (33, 1) + "}",
            CHUNK + MIDDLE % "'m" + "," + USAGE % (34, 2) + "}",
            CHUNK + LAST % " glad" + "," + USAGE % (35, 3) + "}",
            CHUNK + '],"usage":{"prompt_tokens":32,"total_tokens":35,"completion_tokens":3,'
            '"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"FINGERPRINT"}',
        ],
    ),
    (
        "/v1/chat/completions",
        {"messages": HI, "max_tokens": 3, "temperature": 0},
        "I'm glad",
        [
            CHUNK + ROLE + ',"prompt_token_ids":null,"prompt_text":null}',
            CHUNK + MIDDLE % "I" + "}",
            CHUNK + MIDDLE % "'m" + "}",
            CHUNK + LAST % " glad" + ',"system_fingerprint":"FINGERPRINT"}',
        ],
    ),
    (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 2, "temperature": 0, "stream_options": {"include_usage": True}},
        "-and",
        [
            TEXT_CHUNK + TEXT % ("-", "null") + "}",
            TEXT_CHUNK + TEXT % ("and", '"length"') + "}",
            TEXT_CHUNK + '],"usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2,'
            '"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"FINGERPRINT"}',
        ],
    ),
]


@pytest.mark.parametrize(("path", "body", "text", "expected"), STREAMS)
def test_streams(server: RunningServer, path: str, body: Any, text: str, expected: list[str]) -> None:
    script(server, "ID", text)
    response = server.post(path, {**body, "stream": True}, x_request_id="ID")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [f"data: {each}\n\n".replace("FINGERPRINT", FINGERPRINT) for each in [*expected, "[DONE]"]]
    assert normal(response.text) == "".join(events)


def test_models(server: RunningServer) -> None:
    permission = (
        '[{"id":"modelperm-ID","object":"model_permission","created":0,"allow_create_engine":false,"allow_sampling":true,'
        '"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*",'
        '"group":null,"is_blocking":false}]'
    )
    card = (
        '{"id":"m","object":"model","created":0,"owned_by":"octavo","root":"MODEL_DIR","parent":null,"max_model_len":512,'
        f'"permission":{permission}}}'
    )
    both = f'{{"object":"list","data":[{card},{card.replace(chr(34) + "m" + chr(34), chr(34) + "alias" + chr(34))}]}}'
    assert normal(server.http.get("/v1/models").text) == both
    assert normal(server.http.get("/v1/models/m").text) == card
    missing = server.http.get("/v1/models/org/none")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "The model `org/none` does not exist. Valid aliases: m, alias."


def test_tokenize_and_back(server: RunningServer) -> None:
    answer = server.post("/tokenize", {"model": "m", "prompt": "Hello world", "return_token_strs": True})
    assert answer.text == '{"count":2,"max_model_len":512,"tokens":[19556,905],"token_strs":["Hello","Ġworld"]}'
    answer = server.post("/tokenize", {"model": "m", "messages": HI})
    ids = [
        1,
        9690,
        198,
        2683,
        359,
        253,
        5356,
        5646,
        11173,
        3365,
        3511,
        308,
        34519,
        28,
        7018,
        411,
        407,
        19712,
        8182,
        2,
        198,
        1,
    ]
    ids += [4093, 198, 36218, 15876, 2, 198, 1, 520, 9531, 198]
    assert answer.json() == {"count": 32, "max_model_len": 512, "tokens": ids, "token_strs": None}
    assert server.post("/detokenize", {"model": "m", "tokens": [19556, 905]}).text == '{"prompt":"Hello world"}'


def test_tokenize_counts_tools_as_the_template_prints_them(intake: Intake) -> None:
    template = ChatTemplate("{{ messages[0].content }}{% for tool in tools or [] %} {{ tool.name }}{% endfor %}")
    with running(dataclasses.replace(intake, chat_template=template)) as server:
        answers = [
            server.post("/tokenize", {"messages": HI, "tools": tools}).json() for tools in (None, [{"name": "world"}])
        ]
        prompts = [server.post("/detokenize", {"tokens": answer["tokens"]}).json()["prompt"] for answer in answers]
    assert prompts == ["Say hi", "Say hi world"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping(server: RunningServer, method: str) -> None:
    answer = server.http.request(method, "/ping")
    assert (answer.status_code, answer.content, "content-type" in answer.headers) == (200, b"", False)


def test_the_small_routes(server: RunningServer) -> None:
    health = server.http.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert server.http.get("/version").text == f'{{"version":"{octavo.__version__}"}}'
    for method, path in (("GET", "/nope"), ("GET", "/v1/nope")):
        answer = server.http.request(method, path, json={})
        assert (answer.status_code, answer.text) == (404, '{"detail":"Not Found"}')
    answer = server.post("/v1/embeddings", {"input": "x"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NotFoundError")
    answer = server.http.get("/v1/chat/completions")
    assert (answer.status_code, answer.text) == (405, '{"detail":"Method Not Allowed"}')


def test_ids_are_random_unless_the_client_gives_one(server: RunningServer) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    first, second = (server.post("/v1/completions", body).json()["id"] for _ in range(2))
    assert re.fullmatch(r"cmpl-[0-9a-f]{16}", first)
    assert first != second
    assert server.post("/v1/completions", {**body, "request_id": "mine"}).json()["id"] == "cmpl-mine"
    assert server.post("/v1/completions", {**body, "request_id": "mine"}, x_request_id="head").json()["id"] == "cmpl-head"


def test_the_models_defaults_hold_unless_the_request_says_otherwise(intake: Intake) -> None:
    greedy = dataclasses.replace(intake, default_sampling={"temperature": 0.0, "max_tokens": 3})
    with running(greedy) as server:
        refused = server.post("/v1/completions", {"prompt": "a", "n": 2})
        assert refused.json()["error"]["message"] == "n must be 1 when using greedy sampling, got 2."
        assert server.post("/v1/completions", {"prompt": "a", "n": 2, "temperature": 1}).status_code == 200
        chat = {"messages": HI}
        assert server.post("/v1/chat/completions", chat).json()["usage"]["completion_tokens"] == 3
        assert server.post("/v1/chat/completions", {**chat, "max_tokens": 5}).json()["usage"]["completion_tokens"] == 5
        assert server.post("/v1/completions", {"prompt": "a"}).json()["usage"]["completion_tokens"] == 16


def test_the_openapi_document_describes_every_route(server: RunningServer) -> None:
    document = server.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    assert {"json", "regex", "choice", "grammar", "json_object"} <= set(schemas["StructuredOutputsParams"]["properties"])
    for name in ("ChatCompletionRequest", "CompletionRequest"):
        assert schemas[name]["properties"]["stop"]["anyOf"][1]["maxItems"] == 16
    assert set(document["paths"]) >= {"/v1/chat/completions", "/v1/models/{model}", "/health", "/tokenize"}
    text = json.dumps(document)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert references == set(document["components"]["schemas"])
    chat = document["components"]["schemas"]["ChatCompletionRequest"]
    assert chat["required"] == ["messages"]
    temperature = chat["properties"]["temperature"]["anyOf"]
    assert temperature == [{"type": "number", "minimum": 0, "maximum": 2}, {"type": "null"}]
    error = document["paths"]["/v1/messages"]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
    assert error == {"$ref": "#/components/schemas/ErrorBody"}
    operations = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(operations) == len(set(operations))
    prompt = document["components"]["schemas"]["CompletionRequest"]["properties"]["prompt"]
    assert {"type": "string", "minLength": 1} in prompt["anyOf"]
    methods = {(path, method) for path, item in document["paths"].items() for method in item}
    assert {("/ping", "get"), ("/ping", "post"), ("/v1/completions", "post")} <= methods
