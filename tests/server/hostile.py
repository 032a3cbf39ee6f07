"""Bodies that no client of good will sends. Each is wrong by construction, so a 200 for one is a failure too."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

CHAT, TEXT, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    TEXT: {"prompt": "hi", "max_tokens": 2},
    TOKENIZE: {"prompt": "hi"},
    DETOKENIZE: {"tokens": [5]},
}
paths = st.sampled_from([CHAT, TEXT, TOKENIZE, DETOKENIZE])

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
json_values = st.recursive(
    scalars, lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=8), each, max_size=4)
)
containers = st.lists(json_values, max_size=3) | st.dictionaries(st.text(max_size=5), json_values, max_size=3)
words = st.text(min_size=1, max_size=12).filter(
    lambda text: not text.strip().strip("+-").replace("_", "").replace(".", "").isdecimal()
)
no_numbers = containers | words.filter(
    lambda text: text.strip().strip("+-").lower() not in ("nan", "inf", "infinity", "true", "false")
)
too_big = st.integers(min_value=2**63) | st.integers(max_value=-(2**63) - 1)
fractions = st.floats(-1e6, 1e6).filter(lambda value: value % 1 != 0)
outside = st.integers(max_value=-3) | st.integers(min_value=3) | st.floats(min_value=2.01, max_value=1e300)
ids_outside = st.integers(min_value=49_152) | st.integers(max_value=-1)

NO_STRUCTURES: list[Any] = [
    {},
    {"json_object": False},
    {"json": "not json"},
    {"json": {"type": "banana"}},
    {"json": {"items": {"contains": {}}}},
    {"regex": "["},
    {"regex": "a", "choice": ["a"]},
    {"choice": []},
    {"grammar": "start: nowhere"},
    {"structural_tag": "{}"},
    {"typo": "a"},
]

# field -> values that it can never have
WRONG: dict[str, SearchStrategy[Any]] = {
    "model": st.integers() | containers | st.text(max_size=20).filter(lambda name: name not in ("m", "alias")),
    "max_tokens": no_numbers | fractions | too_big | st.integers(max_value=0) | st.integers(min_value=513),
    "temperature": no_numbers | outside | st.floats(max_value=-0.01, allow_infinity=False),
    "top_p": containers | outside | st.floats(min_value=1.001, max_value=5),
    "top_k": no_numbers | fractions | too_big | st.integers(max_value=-2),
    "min_p": no_numbers | outside,
    "n": no_numbers | fractions | too_big | st.integers(max_value=0) | st.integers(min_value=20_000),
    "seed": no_numbers | fractions | too_big,
    "presence_penalty": no_numbers | outside,
    "frequency_penalty": no_numbers | outside,
    "repetition_penalty": no_numbers | st.floats(max_value=0, allow_infinity=False),
    "min_tokens": no_numbers | st.integers(min_value=3) | st.integers(max_value=-1),
    "stop": st.integers()
    | st.lists(st.text(max_size=3), min_size=17, max_size=30)
    | st.lists(st.integers(), min_size=1, max_size=4),
    "stop_token_ids": words | st.lists(ids_outside, min_size=1, max_size=4) | st.lists(words, min_size=1, max_size=4),
    "logit_bias": words | st.lists(scalars, max_size=3) | st.dictionaries(words, st.floats(-1, 1), min_size=1, max_size=3),
    "stream": containers | st.integers(min_value=2) | st.just("perhaps"),
    "stream_options": st.just({"include_usage": True}) | words | st.lists(scalars, max_size=2),
    "prompt_logprobs": no_numbers | st.integers(min_value=21) | st.integers(max_value=-2),
    "ignore_eos": containers | st.integers(min_value=2) | st.none(),
    "response_format": words | st.just({"type": "json_schema"}) | st.just({"type": "regex"}) | st.just({}),
    "truncate_prompt_tokens": no_numbers | st.integers(max_value=-2) | st.just(0) | st.integers(min_value=513),
    "truncation_side": words | st.just("left"),
    "structured_outputs": words | st.lists(scalars, max_size=3) | st.sampled_from(NO_STRUCTURES),
    "allowed_token_ids": words | st.just([]) | st.lists(ids_outside, min_size=1, max_size=4),
    "bad_words": words | st.lists(st.just(" "), min_size=1, max_size=3) | st.lists(st.integers(), min_size=1, max_size=3),
    "best_of": st.integers(min_value=2, max_value=2**62),
    "priority": no_numbers | too_big,
}
messages = st.one_of(
    st.lists(json_values.filter(lambda value: not isinstance(value, dict)), min_size=1, max_size=3),
    st.lists(st.fixed_dictionaries({"role": st.text(max_size=5), "content": json_values}), min_size=1, max_size=2),
    st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.integers() | st.none()}), min_size=1, max_size=2),
    st.lists(st.fixed_dictionaries({"content": st.text(max_size=5)}), min_size=1, max_size=2),
    st.just([]),
    words,
)
prompts = st.one_of(
    st.lists(ids_outside, min_size=1, max_size=5),
    st.lists(st.lists(ids_outside, min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(fractions | st.booleans() | st.none(), min_size=1, max_size=4),
    st.integers() | st.dictionaries(st.text(max_size=3), scalars, max_size=2) | st.booleans(),
    st.sampled_from(["", [], [""], [[]], ["a", 1], [1, "a"], [[1], "a"], [[[1]]], "word " * 600, [1] * 513]),
)


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


@st.composite
def wrong_fields(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good body with at least one field that cannot be, and any number of others of any kind."""
    path = draw(st.sampled_from([CHAT, TEXT]))
    more = draw(st.dictionaries(st.text(max_size=8), json_values, max_size=3))
    names = draw(st.lists(st.sampled_from(sorted(WRONG)), min_size=1, max_size=3, unique=True))
    body = {**more, **GOOD[path], **{name: draw(WRONG[name]) for name in names}}
    if "stream" not in names:
        body.pop("stream", None)
    return path, _encode(body)


@st.composite
def wrong_content(draw: st.DrawFn) -> tuple[str, bytes]:
    """What is to be continued or answered is not such."""
    path = draw(paths)
    name, values = {
        CHAT: ("messages", messages),
        TEXT: ("prompt", prompts),
        TOKENIZE: ("prompt", st.integers() | containers),
        DETOKENIZE: (
            "tokens",
            words | st.lists(ids_outside, min_size=1) | st.lists(words, min_size=1, max_size=3) | st.none(),
        ),
    }[path]
    stream = {"stream": draw(st.booleans())} if path in (CHAT, TEXT) else {}
    return path, _encode({**GOOD[path], name: draw(values), **stream})


@st.composite
def broken_json(draw: st.DrawFn) -> tuple[str, bytes]:
    """Bytes that are no JSON object."""
    path = draw(paths)
    good = _encode(GOOD[path])
    strange = b'{"prompt": %s, "messages": [{"role": "user", "content": %s}], "tokens": [%s]}'
    kinds = st.one_of(
        st.integers(0, len(good) - 1).map(lambda end: good[:end]),
        st.sampled_from([b"\xff", b"\x00", b"\xed\xa0\x80", b"}", b"{", b"'"]).map(lambda extra: good + extra),
        st.binary(max_size=40).filter(lambda data: not data.strip().startswith(b"{")),
        st.integers(20_000, 200_000).map(lambda depth: b'{"prompt": ' + b"[" * depth),
        st.sampled_from(
            [b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b'"\\udfff x"', b"tru", b"01", b'"\\x"', b"9" * 5000]
        ).map(lambda value: strange % (value, value, value)),
        scalars.map(_encode),
        st.lists(scalars, max_size=3).map(_encode),
    )
    return path, draw(kinds)


hostile_bodies = wrong_fields() | wrong_content() | broken_json()


def assert_refused(response: httpx.Response, path: str, body: bytes) -> None:
    """A 4xx in the envelope, naming its own status; never a stream, a fault or an answer."""
    shown = (path, body[:300], response.status_code, response.text[:300])
    assert 400 <= response.status_code < 500, shown
    assert response.headers["content-type"] == "application/json", shown
    content = response.json()
    assert list(content) == ["error"], shown
    error = content["error"]
    assert list(error) == ["message", "type", "param", "code"], shown
    assert error["code"] == response.status_code, shown
    assert isinstance(error["message"], str), shown
    assert error["message"], shown
    assert len(error["message"]) < 10_000, shown
    assert error["param"] is None or isinstance(error["param"], str), shown
