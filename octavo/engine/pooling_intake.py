"""The gate through which requests to a pooling model pass: what `Intake.request` is for those that generate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from octavo.engine import request_checks as checks
from octavo.engine.intake import Intake
from octavo.engine.request import Request
from octavo.engine.truncation import Truncation
from octavo.errors import ValidationError
from octavo.pooling.params import PoolingParams, PoolingWork, resolve
from octavo.pooling.settings import Pooling
from octavo.sampling.params import SamplingParams

_NOTHING_DRAWN = SamplingParams(max_tokens=1, temperature=0.0, seed=0)


@dataclass(frozen=True)
class Pair:
    """Two texts whose relevance to each other is asked, and how many tokens each may have (None: any number)."""

    first: str
    second: str
    first_limit: int | None = None
    second_limit: int | None = None


@dataclass(frozen=True)
class PoolingIntake:
    """One pooling model, as clients see it. Safe to use from several threads."""

    intake: Intake
    pooling: Pooling

    @classmethod
    def of(cls, intake: Intake) -> PoolingIntake:
        """ValidationError for a model that generates text."""
        if intake.pooling is None:
            raise ValidationError(
                "The model generates text, and has no embeddings, classes or scores: see --runner pooling."
            )
        return cls(intake, intake.pooling)

    def request(
        self,
        request_id: str,
        content: str | Sequence[int] | Pair,
        params: PoolingParams,
        *,
        name: str = "input",
        add_special_tokens: bool = True,
        prompt_name: str | None = None,
        truncation: Truncation | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
    ) -> Request:
        """The request for the engine. ValidationError, in which the content is called `name`, for everything that can be
        refused. The text of the model's prompts that is called `prompt_name`, or that is the model's default, is put before
        a text. `truncation` cuts a long content, on the right unless it says left."""
        checks.check_cache_salt(cache_salt)
        checks.check_priority(priority, self.intake.scheduling_policy)
        work = resolve(params, self.pooling, self.intake.name)
        if isinstance(content, str) and not content:
            raise ValidationError(f"{name} must not be empty.", parameter=name)
        if isinstance(content, Pair):
            token_ids, work = self._pair(content, work, truncation)
        elif isinstance(content, str):
            token_ids = self._text(self._prompt(prompt_name) + content, name, add_special_tokens, truncation)
        else:
            token_ids = self._ids(content, name, truncation)
        checks.check_prompt_length(len(token_ids), self.intake.max_model_len, is_text=isinstance(content, str))
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=_NOTHING_DRAWN,
            arrival_time=time.time(),
            cache_salt=cache_salt,
            priority=priority,
            pooling=work,
        )

    def _prompt(self, name: str | None) -> str:
        chosen = self.pooling.default_prompt if name is None else name
        if chosen is None:
            return ""
        if chosen not in self.pooling.prompts:
            known = ", ".join(map(repr, self.pooling.prompts)) or "none"
            raise ValidationError(
                f"prompt_name must be one of the model's prompts ({known}), got {chosen!r:.60}.", parameter="prompt_name"
            )
        return self.pooling.prompts[chosen]

    def _text(self, text: str, name: str, add_special_tokens: bool, truncation: Truncation | None) -> list[int]:
        text = text.lower() if self.pooling.lower_case else text
        if truncation is None:
            return self.intake.token_ids(text, add_special_tokens=add_special_tokens)
        if self.intake.tokenizer is None:
            return self.intake.token_ids(text)  # which says so
        limit = truncation.limit(self.intake.max_model_len)
        token_ids, truncation.num_dropped = self.intake.tokenizer.encode_within(
            text, limit, truncation.side, add_special_tokens
        )
        return self._ids(token_ids, name, None)

    def _ids(self, token_ids: Sequence[Any], name: str, truncation: Truncation | None) -> list[int]:
        if not token_ids:
            raise ValidationError(f"{name} must not be empty.", parameter=name)
        checked = checks.check_token_ids(token_ids, self.intake.model_config.vocab_size, name)
        return checked if truncation is None else truncation.apply(checked, 0, self.intake.max_model_len)

    def _joined(self, pair: Pair, truncation: Truncation | None) -> list[int]:
        """For a model that reads on: one text behind the other."""
        tokenizer = self.intake.tokenizer
        assert tokenizer is not None
        texts = [(pair.first, pair.first_limit), (pair.second, pair.second_limit)]
        text = "".join(text if limit is None else tokenizer.first_tokens(text, limit) for text, limit in texts)
        return self._text(text, "input", True, truncation)

    def _pair(self, pair: Pair, work: PoolingWork, truncation: Truncation | None) -> tuple[list[int], PoolingWork]:
        tokenizer = self.intake.tokenizer
        if tokenizer is None:
            return self.intake.token_ids(pair.first), work  # which says so
        limit, limits = None, (pair.first_limit, pair.second_limit)
        if truncation is not None:
            limit = truncation.limit(self.intake.max_model_len)
        else:
            uncut = (text for text, most in zip((pair.first, pair.second), limits, strict=True) if most is None)
            checks.check_characters("".join(uncut), self.intake.max_model_len, tokenizer.max_chars_per_token)
        if self.pooling.lower_case:
            pair = replace(pair, first=pair.first.lower(), second=pair.second.lower())
        if not self.pooling.is_encoder:
            return self._joined(pair, truncation), work
        side = "right" if truncation is None else truncation.side
        token_ids, second_text, dropped = tokenizer.encode_pair(pair.first, pair.second, limits, limit, side)
        if truncation is not None:
            truncation.num_dropped = dropped
        has_types = self.pooling.num_token_types > 1
        work = msgspec.structs.replace(work, second_text=second_text if has_types else None)
        return self._ids(token_ids, "input", None), work
