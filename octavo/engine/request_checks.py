"""What a request may ask for: the checks of `Intake.request`, with vLLM's texts where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import ContextLengthError, ValidationError
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

_SHOWN_IDS = 10


def can_be_structured(tokenizer: Tokenizer | None, eos_token_ids: Sequence[int]) -> Tokenizer:
    """The tokenizer. ValidationError where no grammar can be followed: without one, without an EOS, or where tokens are
    words with spaces between them."""
    if tokenizer is None:
        reason = "a tokenizer, and the model runs without one (--skip-tokenizer-init)"
    elif not eos_token_ids:
        reason = "an end-of-sequence token, which the model does not have"
    elif tokenizer.pieces.separator:
        reason = "a tokenizer whose tokens join to a text without spaces between them"
    else:
        return tokenizer
    raise ValidationError(f"Structured outputs need {reason}.", parameter="structured_outputs")


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """ValidationError naming ids of `stop_token_ids`, `allowed_token_ids` and `logit_bias` that the model does not have."""
    names = ("stop_token_ids", "allowed_token_ids", "logit_bias")
    for name, ids in ((name, getattr(params, name)) for name in names):
        wrong = [id for id in ids or () if not 0 <= id < vocab_size][:_SHOWN_IDS]
        if wrong:
            text = f"token_id(s) {wrong} in {name} contain out-of-vocab token ids. Vocabulary size: {vocab_size}"
            raise ValidationError(text, parameter=name, value=wrong)


def check_logprobs(params: SamplingParams, vocab_size: int, max_logprobs: int) -> dict[str, int]:
    """The numbers of logprobs, with -1 (all) counted out. `max_logprobs` -1: no limit."""
    limit = vocab_size if max_logprobs == -1 else max_logprobs
    counts = {}
    for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        asked = getattr(params, name)
        if asked is None:
            continue
        counts[name] = vocab_size if asked == -1 else asked
        if counts[name] > limit:
            text = f"Requested {kind} logprobs of {counts[name]}, which is greater than max allowed: {limit}"
            raise ValidationError(text, parameter=name, value=asked)
    return counts


def check_token_ids(prompt: Sequence[Any], vocab_size: int, name: str = "prompt") -> list[int]:
    """The prompt's ids as a list. ValidationError names the place of what is no id of the model."""
    if all(type(id) is int for id in prompt) and min(prompt) >= 0 and max(prompt) < vocab_size:
        return list(prompt)
    place, wrong = next((i, id) for i, id in enumerate(prompt) if not _is_id(id, vocab_size))
    if type(wrong) is not int:
        raise ValidationError(f"{name}[{place}] must be a token id (an integer), got {wrong!r:.60}.", parameter=name)
    raise ValidationError(
        f"Token id {wrong} is out of vocabulary: {name}[{place}] must be in [0, {vocab_size - 1}].",
        parameter=name,
        value=wrong,
    )


def _is_id(id: Any, vocab_size: int) -> bool:
    return type(id) is int and 0 <= id < vocab_size


def check_characters(text: str, max_model_len: int, max_chars_per_token: int) -> None:
    """ValidationError for a text that cannot fit whatever its tokens are, before any work is put into it."""
    most = max_model_len * max_chars_per_token
    if len(text) > most:
        raise ValidationError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {len(text)} "
            f"characters (more than {most} characters, which is the upper bound for {max_model_len} input tokens). "
            "Please reduce the length of the input prompt.",
            parameter="input_text",
            value=len(text),
        )


def check_cache_salt(cache_salt: Any) -> None:
    """ValidationError for a salt that would be none, or is no text."""
    if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
        raise ValidationError(
            "Parameter 'cache_salt' must be a non-empty string if provided.", parameter="cache_salt", value=cache_salt
        )


def check_priority(priority: Any, scheduling_policy: str) -> None:
    """ValidationError for what is no 64-bit integer, and for a priority that nothing would come of."""
    if type(priority) is not int or not -(2**63) <= priority < 2**63:
        raise ValidationError(f"priority must be an integer of 64 bits, got {priority!r:.60}", parameter="priority")
    if priority and scheduling_policy != "priority":
        text = f"Got priority {priority} but Priority scheduling is not enabled: start with --scheduling-policy priority."
        raise ValidationError(text, parameter="priority", value=priority)


def check_max_tokens(max_tokens: int | None, max_model_len: int, name: str) -> None:
    """ValidationError where the output alone is longer than the context."""
    if max_tokens is not None and max_tokens > max_model_len:
        raise ValidationError(
            f"{name}={max_tokens} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens.",
            parameter=name,
            value=max_tokens,
        )


def check_room(max_tokens: int | None, room: int, length: int, max_model_len: int, name: str) -> None:
    """ContextLengthError with the arithmetic where so many tokens cannot follow a prompt of `length`."""
    if max_tokens is not None and max_tokens > room:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {length + max_tokens} "
            f"tokens: {length} in the prompt and {name}={max_tokens} for the answer. Request at most {room} output tokens, "
            "or shorten the prompt.",
            parameter=name,
            value=max_tokens,
        )


def check_prompt_length(length: int, max_model_len: int, *, is_text: bool) -> None:
    """ValidationError for a prompt that is longer than the context. Of a text only that is told, as in vLLM, which stops
    counting there."""
    if length <= max_model_len:
        return
    shown, at_least = (max_model_len + 1, "at least ") if is_text else (length, "")
    raise ValidationError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {at_least}{shown} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        "prompt.",
        parameter="input_tokens",
        value=shown,
    )


def check_offline_length(length: int, max_model_len: int, *, needs_output: bool) -> None:
    """As `check_prompt_length`, in the words of vLLM's `LLM`, for a prompt that leaves no room as well."""
    if length > max_model_len:
        raise ValidationError(
            f"The decoder prompt (length {length}) is longer than the maximum model length of {max_model_len}. Make sure "
            "that `max_model_len` is no smaller than the number of text tokens."
        )
    if length == max_model_len and needs_output:
        raise ValidationError(
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer than "
            f"the maximum model length of {max_model_len}. Make sure that `max_model_len` is no smaller than the number of "
            "text tokens (prompt + requested output tokens)."
        )


def room_for_output(length: int, max_model_len: int, *, only_scores: bool) -> int:
    """How many tokens can follow a prompt of `length`. One may follow a prompt that fills the context if only its own
    logprobs are wanted: that token is sampled, but needs no place. ValidationError if there is no room."""
    room = max_model_len - length or (1 if only_scores else 0)
    if room < 1:
        raise ValidationError("max_tokens must be at least 1, got 0.", parameter="max_tokens", value=0)
    return room
