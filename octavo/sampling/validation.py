"""The rules of SamplingParams: types, ranges, normal forms, and the texts that say which one was broken.

Texts are vLLM's where vLLM has one, and so is whether ` (parameter=X, value=Y)` follows (and the envelope's `param` is set):
only for the fields in `_WITH_PARAMETER`. Checking again what has been checked changes nothing.
"""

from __future__ import annotations

import math
import re
import reprlib
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from octavo.errors import ValidationError
from octavo.sampling.structured import StructuredOutputsParams

if TYPE_CHECKING:
    from octavo.sampling.params import SamplingParams

MAX_N = 16_384
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 1_024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS_ENTRIES = 1_024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256

_INT64 = range(-(2**63), 2**63)  # seeds, and what msgpack carries
_WITH_PARAMETER = {
    "temperature",
    "top_p",
    "max_tokens",
    "logprobs",
    "prompt_logprobs",
    "seed",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "thinking_token_budget",
}
_FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")
_DECIMAL = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def validate(params: SamplingParams) -> None:
    """Bring every field into its normal form, in place. Raises `ValidationError` at the first one that is wrong."""
    _validate_n(params)
    _validate_penalties(params)
    _validate_distribution(params)
    _validate_seed(params)
    _validate_lengths(params)
    params.logprobs = _logprob_count("logprobs", params.logprobs)
    params.prompt_logprobs = _logprob_count("prompt_logprobs", params.prompt_logprobs)
    for name in _FLAGS:
        if not isinstance(getattr(params, name), bool):
            raise _error(name, f"{name} must be a boolean, got {_type_name(getattr(params, name))}.")
    params.stop = _stop_strings(params.stop)
    params.stop_token_ids = _stop_token_ids(params.stop_token_ids)
    params.logit_bias = _logit_bias(params.logit_bias)
    params.allowed_token_ids = _allowed_token_ids(params.allowed_token_ids)
    params.bad_words = _bad_words(params.bad_words)
    if not isinstance(params.structured_outputs, StructuredOutputsParams | None):
        what = _type_name(params.structured_outputs)
        raise _error("structured_outputs", f"structured_outputs must be StructuredOutputsParams, got {what}.")
    if params.stop and not params.detokenize:
        text = "stop strings are only supported when detokenize is True. Set detokenize=True to use stop."
        raise _error("stop", text)
    if params.temperature == 0.0 and params.n > 1:
        raise _error("n", f"n must be 1 when using greedy sampling, got {params.n}.")


def _validate_n(params: SamplingParams) -> None:
    if isinstance(params.n, bool) or not isinstance(params.n, Integral):
        raise _error("n", f"n must be an int, but is of type {type(params.n)}")
    params.n = _integer("n", params.n)
    _require(params.n >= 1, "n", "must be at least 1", params.n)
    _require(params.n <= MAX_N, "n", f"must be at most {MAX_N}", params.n)


def _validate_penalties(params: SamplingParams) -> None:
    params.presence_penalty = presence = _number("presence_penalty", params.presence_penalty)
    _require(-2.0 <= presence <= 2.0, "presence_penalty", "must be in [-2, 2]", presence)
    params.frequency_penalty = frequency = _number("frequency_penalty", params.frequency_penalty)
    _require(-2.0 <= frequency <= 2.0, "frequency_penalty", "must be in [-2, 2]", frequency)
    params.repetition_penalty = repetition = _number("repetition_penalty", params.repetition_penalty)
    _require(math.isfinite(repetition), "repetition_penalty", "must be a finite number", repetition)
    _require(repetition > 0.0, "repetition_penalty", "must be greater than zero", repetition)


def _validate_distribution(params: SamplingParams) -> None:
    params.temperature = temperature = _number("temperature", params.temperature)
    _require(math.isfinite(temperature), "temperature", "must be a finite number", temperature)
    _require(temperature >= 0.0, "temperature", "must be non-negative", temperature)
    _require(temperature <= 2.0, "temperature", "must be in [0, 2]", temperature)
    params.top_p = top_p = _number("top_p", params.top_p)
    _require(0.0 <= top_p <= 1.0, "top_p", "must be in (0, 1]", top_p)
    params.top_k = top_k = _integer("top_k", params.top_k)
    _require(top_k >= -1, "top_k", "must be 0 (disable), or at least 1", top_k)
    params.min_p = min_p = _number("min_p", params.min_p)
    _require(0.0 <= min_p <= 1.0, "min_p", "must be in [0, 1]", min_p)


def _validate_seed(params: SamplingParams) -> None:
    if params.seed is None:
        return
    seed = _integer("seed", params.seed)
    params.seed = None if seed == -1 else seed


def _validate_lengths(params: SamplingParams) -> None:
    if params.max_tokens is not None:
        params.max_tokens = _integer("max_tokens", params.max_tokens)
        _require(params.max_tokens >= 1, "max_tokens", "must be at least 1", params.max_tokens)
    params.min_tokens = _integer("min_tokens", params.min_tokens)
    _require(params.min_tokens >= 0, "min_tokens", "must be greater than or equal to 0", params.min_tokens)
    if params.thinking_token_budget is not None:
        params.thinking_token_budget = budget = _integer("thinking_token_budget", params.thinking_token_budget)
        _require(budget >= 0, "thinking_token_budget", "must be non-negative", budget)
    if params.max_tokens is not None:
        rule = f"must be less than or equal to max_tokens={params.max_tokens}"
        _require(params.min_tokens <= params.max_tokens, "min_tokens", rule, params.min_tokens)


def _logprob_count(name: str, value: int | None) -> int | None:
    """None, or how many; True is 1 as in vLLM, False would be a riddle."""
    if value is None:
        return None
    count = 1 if value is True else _integer(name, value)
    _require(count >= -1, name, "must be non-negative or -1", count)
    return count


def _stop_strings(value: Any) -> list[str]:
    stops = _as_list("stop", [value] if isinstance(value, str) else value, "a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise _error("stop", f"stop can hold at most {MAX_STOP_STRINGS} strings, got {len(stops)}.")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise _error("stop", f"stop must contain only strings, got {_type_name(stop)} at index {index}.")
        if not stop:
            raise _error("stop", "stop cannot contain an empty string.")
        if len(stop) > MAX_STOP_STRING_CHARACTERS:
            rule = f"a stop string can have at most {MAX_STOP_STRING_CHARACTERS} characters"
            raise _error("stop", f"{rule}, got {len(stop)} at index {index}.")
        if not _is_unicode(stop):
            raise _error("stop", f"stop must contain only valid Unicode, got half a surrogate pair at index {index}.")
    return stops


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _stop_token_ids(value: Any) -> list[int]:
    ids = _as_list("stop_token_ids", value, "a list of integers")
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise _error("stop_token_ids", f"stop_token_ids can hold at most {MAX_STOP_TOKEN_IDS} ids, got {len(ids)}.")
    if not all(_is_integer(token) for token in ids):
        raise _error("stop_token_ids", f"stop_token_ids must contain only integers, got {_shown(ids)}.")
    return list(dict.fromkeys(int(token) for token in ids))


def _allowed_token_ids(value: Any) -> list[int] | None:
    if value is None:
        return None
    ids = _as_list("allowed_token_ids", value, "a list of integers")
    if not ids:
        raise _error("allowed_token_ids", "allowed_token_ids is not None and empty!")
    if not all(_is_integer(token) for token in ids):
        raise _error("allowed_token_ids", f"allowed_token_ids must contain only integers, got {_shown(ids)}.")
    return list(dict.fromkeys(int(token) for token in ids))


def _bad_words(value: Any) -> list[str]:
    words = _as_list("bad_words", value, "a list of strings")
    if len(words) > MAX_BAD_WORDS:
        raise _error("bad_words", f"bad_words can hold at most {MAX_BAD_WORDS} words, got {len(words)}.")
    for index, word in enumerate(words):
        if not isinstance(word, str) or not word.strip() or not _is_unicode(word):
            raise _error("bad_words", f"bad_words must contain only texts that are not blank, got {word!r:.60} at {index}.")
        if len(word) > MAX_BAD_WORD_CHARACTERS:
            rule = f"a bad word can have at most {MAX_BAD_WORD_CHARACTERS} characters"
            raise _error("bad_words", f"{rule}, got {len(word)} at index {index}.")
    return words


def _logit_bias(value: Any) -> dict[int, float] | None:
    """Keys may be decimal strings, as JSON has them; values are clamped to [-100, 100] as in vLLM."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _error("logit_bias", f"logit_bias must map token ids to numbers, got {_type_name(value)}.")
    if len(value) > MAX_LOGIT_BIAS_ENTRIES:
        raise _error("logit_bias", f"logit_bias can hold at most {MAX_LOGIT_BIAS_ENTRIES} entries, got {len(value)}.")
    wrong = [key for key in value if not _is_token_key(key)]
    if wrong:
        shown = _shown(wrong)
        text = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {shown}"
        raise _error("logit_bias", text, shown)
    biases = {int(key): _number(f"logit_bias value of token {key}", bias, "logit_bias") for key, bias in value.items()}
    for key, bias in biases.items():
        if math.isnan(bias):
            raise _error("logit_bias", f"logit_bias value of token {key} must be a number, got nan.")
    return {key: min(100.0, max(-100.0, bias)) for key, bias in biases.items()}


def _is_token_key(key: Any) -> bool:
    if isinstance(key, str):
        return _DECIMAL.fullmatch(key) is not None
    return _is_integer(key)


def _is_integer(value: Any) -> bool:
    """Whether it is an integer of 64 bits; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) in _INT64


def _as_list(name: str, value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise _error(name, f"{name} must be {what}, got {_type_name(value)}.")
    return list(value)


def _number(what: str, value: Any, name: str | None = None) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _error(name or what, f"{what} must be a number, got {_type_name(value)}.")
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return -math.inf if value < 0 else math.inf


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _error(name, f"{name} must be an integer, got {_type_name(value)}")
    if int(value) not in _INT64:  # not shown: it may have any number of digits
        raise _error(name, f"{name} must be in [{_INT64.start}, {_INT64.stop - 1}].")
    return int(value)


def _require(condition: bool, name: str, rule: str, value: object) -> None:
    if not condition:
        raise _error(name, f"{name} {rule}, got {value}.", value)


_NO_VALUE: Any = object()


def _error(name: str, message: str, value: Any = _NO_VALUE) -> ValidationError:
    if name not in _WITH_PARAMETER:
        return ValidationError(message)
    if value is _NO_VALUE:
        return ValidationError(message, parameter=name)
    return ValidationError(message, parameter=name, value=value)


def _shown(values: list[Any]) -> str:
    """The list as it prints, shortened where it would flood the message."""
    texts = [
        "<huge integer>" if isinstance(value, int) and value not in _INT64 else reprlib.repr(value) for value in values[:6]
    ]
    return f"[{', '.join(texts)}{', ...' if len(values) > 6 else ''}]"


def _type_name(value: object) -> str:
    return type(value).__name__
