"""SamplingParams: vLLM's texts, normal forms, wrong types, limits, and the way over msgpack."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ValidationError
from octavo.pooling.params import PoolingParams
from octavo.sampling import validation
from octavo.sampling.params import BeamSearchParams, SamplingParams, SamplingType

NAN, INF, HUGE = math.nan, math.inf, 10**6000

TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)"),
    ({"temperature": 2.5}, "temperature must be in [0, 2], got 2.5. (parameter=temperature, value=2.5)"),
    ({"temperature": 100}, "temperature must be in [0, 2], got 100.0. (parameter=temperature, value=100.0)"),
    ({"temperature": NAN}, "temperature must be a finite number, got nan. (parameter=temperature, value=nan)"),
    ({"temperature": INF}, "temperature must be a finite number, got inf. (parameter=temperature, value=inf)"),
    ({"temperature": HUGE}, "temperature must be a finite number, got inf. (parameter=temperature, value=inf)"),
    ({"top_p": 2.0}, "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)"),
    ({"top_p": 1.0001}, "top_p must be in (0, 1], got 1.0001. (parameter=top_p, value=1.0001)"),
    ({"top_p": -0.1}, "top_p must be in (0, 1], got -0.1. (parameter=top_p, value=-0.1)"),
    ({"top_p": NAN}, "top_p must be in (0, 1], got nan. (parameter=top_p, value=nan)"),
    ({"top_k": -5}, "top_k must be 0 (disable), or at least 1, got -5."),
    ({"min_p": 1.5}, "min_p must be in [0, 1], got 1.5."),
    ({"min_p": NAN}, "min_p must be in [0, 1], got nan."),
    ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1."),
    ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1."),
    ({"frequency_penalty": NAN}, "frequency_penalty must be in [-2, 2], got nan."),
    ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0.0."),
    ({"repetition_penalty": INF}, "repetition_penalty must be a finite number, got inf."),
    ({"max_tokens": 0}, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"),
    ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1."),
    ({"min_tokens": 17}, "min_tokens must be less than or equal to max_tokens=16, got 17."),
    ({"n": 0}, "n must be at least 1, got 0."),
    ({"n": 16385}, "n must be at most 16384, got 16385."),
    ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2."),
    ({"logprobs": -2}, "logprobs must be non-negative or -1, got -2. (parameter=logprobs, value=-2)"),
    ({"prompt_logprobs": -2}, "prompt_logprobs must be non-negative or -1, got -2. (parameter=prompt_logprobs, value=-2)"),
    ({"seed": 2**63}, "seed must be in [-9223372036854775808, 9223372036854775807]. (parameter=seed)"),
    ({"stop": [""]}, "stop cannot contain an empty string."),
    ({"stop": ""}, "stop cannot contain an empty string."),
    (
        {"stop": "x", "detokenize": False},
        "stop strings are only supported when detokenize is True. Set detokenize=True to use stop.",
    ),
    ({"stop": ["x"] * 17}, "stop can hold at most 16 strings, got 17."),
    ({"stop": ["a", "x" * 1025]}, "a stop string can have at most 1024 characters, got 1025 at index 1."),
    ({"stop": "a\ud800"}, "stop must contain only valid Unicode, got half a surrogate pair at index 0."),
    ({"stop_token_ids": list(range(257))}, "stop_token_ids can hold at most 256 ids, got 257."),
    ({"stop_token_ids": ["a"]}, "stop_token_ids must contain only integers, got ['a']."),
    ({"stop_token_ids": [HUGE]}, "stop_token_ids must contain only integers, got [<huge integer>]."),
    (
        {"logit_bias": dict.fromkeys(range(1025), 1.0)},
        "logit_bias can hold at most 1024 entries, got 1025. (parameter=logit_bias)",
    ),
    (
        {"logit_bias": {"x": 1}},
        "logit_bias contains key(s) that cannot be converted to integer token IDs: ['x']"
        " (parameter=logit_bias, value=['x'])",
    ),
    ({"logit_bias": {5: NAN}}, "logit_bias value of token 5 must be a number, got nan. (parameter=logit_bias)"),
    # wrong types
    ({"n": "2"}, "n must be an int, but is of type <class 'str'>"),
    ({"n": True}, "n must be an int, but is of type <class 'bool'>"),
    ({"top_k": 1.5}, "top_k must be an integer, got float"),
    ({"max_tokens": "abc"}, "max_tokens must be an integer, got str (parameter=max_tokens)"),
    ({"max_tokens": True}, "max_tokens must be an integer, got bool (parameter=max_tokens)"),
    ({"min_tokens": None}, "min_tokens must be an integer, got NoneType"),
    ({"seed": 1.0}, "seed must be an integer, got float (parameter=seed)"),
    ({"logprobs": False}, "logprobs must be an integer, got bool (parameter=logprobs)"),
    ({"temperature": "1"}, "temperature must be a number, got str. (parameter=temperature)"),
    ({"temperature": None}, "temperature must be a number, got NoneType. (parameter=temperature)"),
    ({"top_p": True}, "top_p must be a number, got bool. (parameter=top_p)"),
    ({"min_p": [0.1]}, "min_p must be a number, got list."),
    ({"presence_penalty": 1j}, "presence_penalty must be a number, got complex."),
    ({"ignore_eos": 1}, "ignore_eos must be a boolean, got int."),
    ({"stop": 5}, "stop must be a string or a list of strings, got int."),
    ({"stop": ["a", 5]}, "stop must contain only strings, got int at index 1."),
    ({"stop_token_ids": 5}, "stop_token_ids must be a list of integers, got int."),
    ({"stop_token_ids": [True]}, "stop_token_ids must contain only integers, got [True]."),
    ({"logit_bias": [1]}, "logit_bias must map token ids to numbers, got list. (parameter=logit_bias)"),
    ({"logit_bias": {5: "1"}}, "logit_bias value of token 5 must be a number, got str. (parameter=logit_bias)"),
]


@pytest.mark.parametrize(("fields", "text"), TEXTS, ids=[" ".join(fields) + f" {i}" for i, (fields, _) in enumerate(TEXTS)])
def test_refusals_have_their_exact_text(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(**fields)
    assert caught.value.message == text
    assert caught.value.parameter == (next(iter(fields)) if "(parameter=" in text else None)


def test_messages_stay_short_whatever_is_sent() -> None:
    for fields in ({"stop_token_ids": ["x" * 10**6] * 256}, {"logit_bias": {f"{i}" + "x" * 10**4: 1 for i in range(1024)}}):
        with pytest.raises(ValidationError) as caught:
            SamplingParams(**fields)
        assert len(caught.value.message) < 700


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert (params.logprobs, params.prompt_logprobs, params.logit_bias) == (None, None, None)
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == ([], [], False)
    assert (params.detokenize, params.skip_special_tokens, params.spaces_between_special_tokens) == (True, True, True)
    assert params.include_stop_str_in_output is False


def test_positional_order_is_vllms() -> None:
    params = SamplingParams(2, 0.1, 0.2, 1.3, 0.4)
    assert (params.n, params.presence_penalty, params.frequency_penalty) == (2, 0.1, 0.2)
    assert (params.repetition_penalty, params.temperature) == (1.3, 0.4)


def test_normal_forms() -> None:
    params = SamplingParams(
        stop="END",
        stop_token_ids=(3, 3, np.int64(4)),
        seed=-1,
        temperature=1,
        logit_bias={"5": 200, 6: -INF, 7: 1},
        logprobs=True,
    )
    assert params.stop == ["END"]
    assert params.stop_token_ids == [3, 4]
    assert params.seed is None
    assert type(params.temperature) is float
    assert params.logit_bias == {5: 100.0, 6: -100.0, 7: 1.0}
    assert params.logprobs == 1
    assert all(type(token) is int for token in params.stop_token_ids)
    assert type(SamplingParams(temperature=np.float32(0.5)).temperature) is float


def test_accepted_edges() -> None:
    SamplingParams(
        temperature=2.0, top_p=0, min_p=1, top_k=-1, logprobs=-1, prompt_logprobs=-1, max_tokens=None, min_tokens=10**6
    )
    SamplingParams(temperature=5e-324, n=2)  # greedy in effect, yet vLLM takes it
    SamplingParams(seed=-(2**63), repetition_penalty=5e-324, stop=["x" * 1024] * 16)


def test_a_typo_is_refused() -> None:
    with pytest.raises(TypeError, match=r"SamplingParams has no field 'temprature'; did you mean temperature[?]"):
        SamplingParams(temprature=0.5)
    with pytest.raises(TypeError, match=r"SamplingParams has no field 'temp'; did you mean temperature[?]"):
        SamplingParams(temp=0)
    with pytest.raises(TypeError, match=r"BeamSearchParams has no field 'width'; did you mean beam_width[?]"):
        BeamSearchParams(4, 8, width=1)
    with pytest.raises(TypeError, match=r"PoolingParams has no field 'dimension'; did you mean dimensions[?]"):
        PoolingParams(dimension=1)
    with pytest.raises(AttributeError, match="temprature"):
        SamplingParams().temprature = 0.5  # type: ignore[attr-defined]


def test_from_optional_takes_none_for_not_given() -> None:
    assert (
        SamplingParams.from_optional(temperature=None, top_k=None, n=None, min_tokens=None, ignore_eos=None)
        == SamplingParams()
    )
    assert SamplingParams.from_optional(max_tokens=None).max_tokens is None
    assert SamplingParams.from_optional(logit_bias={"5": 101}).logit_bias == {5: 100.0}


def test_clone_shares_nothing_and_validates() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1], logit_bias={1: 1.0})
    copy = params.clone()
    assert copy == params
    assert copy.stop is not params.stop
    assert copy.stop_token_ids is not params.stop_token_ids
    assert copy.logit_bias is not params.logit_bias
    params.top_k = -7
    with pytest.raises(ValidationError, match="top_k"):
        params.clone()


def test_sampling_type() -> None:
    for temperature in (0, 5e-324, 1e-10, 1e-4):
        assert SamplingParams(temperature=temperature, seed=1).sampling_type is SamplingType.GREEDY
    assert SamplingParams(temperature=0.01).sampling_type is SamplingType.RANDOM
    assert SamplingParams(seed=0).sampling_type is SamplingType.RANDOM_SEED


numbers = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3))
anything = st.recursive(
    numbers, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), anything, max_size=4))
def test_any_json_value_is_taken_or_refused(fields: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**fields)
    except ValidationError:
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    again = params.clone()
    validation.validate(again)
    assert again == params


valid = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 4),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0, exclude_min=True, allow_infinity=False),
        "temperature": st.floats(0.01, 2),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(-1, 2**63 - 1),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "stop": st.none() | st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=16),
        "stop_token_ids": st.none() | st.lists(st.integers(0, 2**31)),
        "max_tokens": st.none() | st.integers(16, 10**6),
        "min_tokens": st.integers(0, 16),
        "logprobs": st.none() | st.integers(-1, 20),
        "logit_bias": st.none() | st.dictionaries(st.integers(0, 2**31), st.floats(allow_nan=False), max_size=5),
    },
)


@given(valid)
def test_msgpack_brings_back_an_equal_struct(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
