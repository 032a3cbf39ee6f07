"""The forms in which `LLM` takes prompts, brought to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import ValidationError

PromptType = str | list[int] | Mapping[str, Any]
"""Text, token ids, {"prompt": text} or {"prompt_token_ids": ids}; the dicts may have a "cache_salt" as well."""


@dataclass(frozen=True)
class Prompt:
    """Text or token ids. `add_special_tokens` is off for a rendered chat, whose template wrote them. What was computed is
    shared only with prompts of the same `cache_salt`."""

    content: str | list[int]
    add_special_tokens: bool = True
    cache_salt: str | None = None

    @property
    def text(self) -> str | None:
        """The prompt as text, if it was given so."""
        return self.content if isinstance(self.content, str) else None

    @property
    def token_ids(self) -> list[int] | None:
        """The prompt as token ids, if it was given so."""
        return None if isinstance(self.content, str) else self.content


def read_prompts(prompts: PromptType | Sequence[PromptType]) -> list[Prompt | ValidationError]:
    """One prompt or many to a list, in which a prompt of a form that is none of `PromptType` stands as its error.

    Raises ValidationError when `prompts` as a whole is neither a prompt nor a list.
    """
    if isinstance(prompts, str | Mapping) or _is_token_ids(prompts):
        return [_read(prompts)]
    if not isinstance(prompts, Sequence):
        raise ValidationError(f"prompts must be text, token ids, a dict or a list of these, got {type(prompts).__name__}")
    return [_read(prompt) for prompt in prompts]


def read_conversations(messages: Any) -> list[Any]:
    """One conversation or many to a list; what they hold is judged later. ValidationError for what is no list."""
    if not isinstance(messages, list | tuple):
        raise ValidationError(f"messages must be a list of messages, or a list of such lists, got {type(messages).__name__}")
    return [messages] if messages and isinstance(messages[0], Mapping) else list(messages)


def per_prompt(params: Any, count: int) -> list[Any]:
    """One sampling_params for all prompts, or a list with one for each. Raises ValidationError when the numbers differ."""
    if not isinstance(params, list | tuple):
        return [params] * count
    if len(params) != count:
        raise ValidationError(
            f"sampling_params has {len(params)} entries for {count} prompts; give one for all, or one for each"
        )
    return list(params)


def priorities(priority: Any, count: int) -> list[Any]:
    """One priority for all prompts, or a list with one for each; None is 0. ValidationError when the numbers differ."""
    if not isinstance(priority, list | tuple):
        return [0 if priority is None else priority] * count
    if len(priority) != count:
        raise ValidationError(f"priority has {len(priority)} entries for {count} prompts; give one for all, or one for each")
    return list(priority)


def _read(prompt: Any) -> Prompt | ValidationError:
    if isinstance(prompt, str):
        return Prompt(prompt)
    if isinstance(prompt, Mapping):
        return _read_mapping(prompt)
    if isinstance(prompt, list | tuple) and (not prompt or _is_token_ids(prompt)):
        return Prompt(list(prompt))
    return ValidationError(f"a prompt must be text, token ids or a dict, got {_form(prompt)}")


def _read_mapping(prompt: Mapping[str, Any]) -> Prompt | ValidationError:
    given = {key: value for key, value in prompt.items() if value is not None}
    cache_salt = given.pop("cache_salt", None)
    unknown = [key for key in given if key not in ("prompt", "prompt_token_ids")]
    if unknown:
        return ValidationError(
            f"a prompt's {unknown[0]} is not supported; it may have prompt or prompt_token_ids, and cache_salt"
        )
    if len(given) != 1:
        return ValidationError("a prompt must have either prompt or prompt_token_ids")
    (content,) = given.values()
    if isinstance(content, Mapping):
        return ValidationError("a prompt's prompt must be text or token ids, got a dict")
    read = _read(content)
    return replace(read, cache_salt=cache_salt) if isinstance(read, Prompt) else read


def _form(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "a list of " + " and ".join(sorted({type(one).__name__ for one in value}))
    return type(value).__name__


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(type(one) is int for one in value)
