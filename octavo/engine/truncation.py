"""Prompts that are cut to a length because their sender asks for it; nothing else ever cuts one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ValidationError

SIDES = ("left", "right")
_NAMES = ("truncate_prompt_tokens", "truncation_side")


@dataclass
class Truncation:
    """Keep at most so many tokens of a prompt (-1: as many as leave room for the answer), dropping them on the `side` given:
    "left" keeps the last ones. `num_dropped` is how many that were, once it is done."""

    tokens: int
    side: str = "left"
    num_dropped: int = 0

    @classmethod
    def of(cls, tokens: Any, side: Any = None) -> Truncation | None:
        """From a request's `truncate_prompt_tokens` and `truncation_side`, None being not given. ValidationError for values
        that are none of theirs, and for a side without a length."""
        if side is not None and side not in SIDES:
            raise ValidationError(f"truncation_side must be 'left' or 'right', got {side!r:.60}.", parameter=_NAMES[1])
        if tokens is None:
            if side is not None:
                text = "truncation_side says where truncate_prompt_tokens cuts; give both."
                raise ValidationError(text, parameter=_NAMES[1])
            return None
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < -1 or tokens == 0:
            text = f"truncate_prompt_tokens must be -1, or at least 1, got {tokens!r:.60}."
            raise ValidationError(text, parameter=_NAMES[0])
        return cls(tokens, side or "left")

    @classmethod
    def of_keywords(cls, keywords: Mapping[str, Any] | None) -> Truncation | None:
        """From the `tokenization_kwargs` of `LLM`, which has these two and no others."""
        unknown = [name for name in keywords or () if name not in _NAMES]
        if unknown:
            text = f"tokenization_kwargs has {', '.join(_NAMES)}; got {unknown[0]!r:.60}"
            raise ValidationError(text, parameter="tokenization_kwargs")
        return cls.of(*((keywords or {}).get(name) for name in _NAMES))

    def limit(self, max_model_len: int, max_tokens: int = 0) -> int:
        """How many tokens may stay, where the answer may have `max_tokens`. ValidationError for more than the context."""
        if self.tokens > max_model_len:
            raise ValidationError(
                f"truncate_prompt_tokens value ({self.tokens}) is greater than max_model_len ({max_model_len}). Please "
                "request a smaller truncation size.",
                parameter=_NAMES[0],
                value=self.tokens,
            )
        return max(1, max_model_len - max_tokens) if self.tokens == -1 else self.tokens

    def apply(self, token_ids: list[int], max_tokens: int | None, max_model_len: int) -> list[int]:
        """The tokens that stay, where the answer may have `max_tokens` (None: one at least). ValidationError for a length
        beyond the context."""
        keep = self.limit(max_model_len, 1 if max_tokens is None else max_tokens)
        self.num_dropped = max(0, len(token_ids) - keep)
        return token_ids[self.num_dropped :] if self.side == "left" else token_ids[: len(token_ids) - self.num_dropped]
