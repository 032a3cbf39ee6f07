"""Pairs of texts and their scores, for the server and for `LLM.score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.engine.intake import Intake
from octavo.engine.pooling_intake import Pair
from octavo.errors import ValidationError
from octavo.text.chat_template import ChatTemplate, check_template_variables

_SHORTEST = 1e-8


@dataclass(frozen=True)
class TokenLimits:
    """How many tokens of a query and of a document are looked at; None: all."""

    query: int | None = None
    document: int | None = None

    @classmethod
    def of(cls, query: Any, document: Any, max_model_len: int) -> TokenLimits:
        """From a request's fields, in which 0 is no limit. ValidationError in vLLM's words."""
        for name, value in (("max_tokens_per_query", query), ("max_tokens_per_doc", document)):
            if type(value) is not int or value < 0:
                raise ValidationError(f"{name} must be a non-negative integer", parameter=name)
            if value >= max_model_len:
                text = f"{name} ({value}) must be less than max_model_len ({max_model_len})."
                raise ValidationError(text, parameter=name)
        return cls(query or None, document or None)


def read_texts(value: Any, name: str, architecture: str) -> list[str]:
    """One text, or a list of texts; a text may also be `{"content": [{"type": "text", "text": ...}]}`. ValidationError names
    the place of what is none."""
    texts = []
    given = value if isinstance(value, list) else [value]
    for i, one in enumerate(given):
        place = f"{name}[{i}]" if isinstance(value, list) and len(given) > 1 else name
        text = _text(one, place, name, architecture)
        if not text:
            raise ValidationError(f"{place} must not be empty.", parameter=name)
        texts.append(text)
    return texts


def _text(value: Any, place: str, name: str, architecture: str) -> str:
    if isinstance(value, str):
        return value
    parts = value.get("content") if isinstance(value, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ValidationError(f"{place} must be a text.", parameter=name)
    if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
        raise ValidationError(f"MultiModalParam is not supported for {architecture}", parameter=name)
    return "\n".join(part["text"] for part in parts)


@dataclass(frozen=True)
class ScoringJob:
    """What is computed to score pairs: each pair by a model with one label, or each text by one that embeds."""

    inputs: list[str | Pair]
    is_cross_encoder: bool
    num_first: int
    num_second: int
    has_padding: bool  # between the two texts of a pair, in vLLM's account of its tokens

    @property
    def task(self) -> str:
        """What is asked of the model."""
        return "classify" if self.is_cross_encoder else "embed"

    @classmethod
    def of(
        cls,
        intake: Intake,
        first: Sequence[str],
        second: Sequence[str],
        limits: TokenLimits,
        template: ChatTemplate | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> ScoringJob:
        """One text with each of many, or as many with as many. `template` joins the roles query and document of a pair,
        where the tokenizer does not. ValidationError where there are not so many, and where the
        model scores nothing."""
        if len(first) > 1 and len(first) != len(second):
            raise ValidationError("Input lengths must be either 1:1, 1:N or N:N")
        if not first:
            raise ValidationError("At least one text element must be given")
        if not second:
            raise ValidationError("At least one text_pair element must be given")
        pooling = intake.pooling
        if pooling is None or not pooling.scores:
            raise ValidationError("Scoring API is only enabled for num_labels == 1.")
        has_padding = intake.tokenizer is not None and intake.tokenizer.pad_token_id is not None
        inputs: list[str | Pair]
        if pooling.is_classifier:
            firsts = first if len(first) > 1 else list(first) * len(second)
            variables = template_variables or {}
            check_template_variables(variables)
            inputs = [
                _pair(intake, query, document, limits, template, variables)
                for query, document in zip(firsts, second, strict=True)
            ]
        else:
            cut = [*(_cut(intake, text, limits.query) for text in first)]
            inputs = [*cut, *(_cut(intake, text, limits.document) for text in second)]
        return cls(inputs, pooling.is_classifier, len(first), len(second), has_padding)

    def scores(self, vectors: Sequence[NDArray[np.float32]]) -> list[float]:
        """Of the results of `inputs`."""
        if self.is_cross_encoder:
            return [float(vector[0]) for vector in vectors]
        return [_cosine(vectors[i], vectors[self.num_first + j]) for i, j in self._pairs()]

    def counts(self, counts: Sequence[int]) -> list[int]:
        """Tokens of each pair, from those of `inputs`."""
        if self.is_cross_encoder:
            return list(counts)
        return [counts[i] + self.has_padding + counts[self.num_first + j] for i, j in self._pairs()]

    def token_ids(self, ids: Sequence[list[int]], padding: list[int]) -> list[list[int]]:
        """Of each pair, from those of `inputs`; `padding` stands between two texts that were embedded apart."""
        if self.is_cross_encoder:
            return list(ids)
        return [[*ids[i], *padding, *ids[self.num_first + j]] for i, j in self._pairs()]

    def _pairs(self) -> list[tuple[int, int]]:
        return [(0 if self.num_first == 1 else j, j) for j in range(self.num_second)]


def _pair(
    intake: Intake,
    query: str,
    document: str,
    limits: TokenLimits,
    template: ChatTemplate | None,
    variables: Mapping[str, Any],
) -> str | Pair:
    """The template's text, if there is one for pairs; else the pair, which the tokenizer joins."""
    pair = Pair(query, document, limits.query, limits.document)
    if template is None:
        return pair
    messages = [
        {"role": "query", "content": _cut(intake, query, limits.query)},
        {"role": "document", "content": _cut(intake, document, limits.document)},
    ]
    return template.render(messages, None, None, False, False, **variables)


def _cut(intake: Intake, text: str, limit: int | None) -> str:
    """As much of a text as has at most `limit` tokens."""
    if limit is None or intake.tokenizer is None:
        return text
    return intake.tokenizer.first_tokens(text, limit)


def _cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    a, b = first.astype(np.float64), second.astype(np.float64)
    lengths = max(float(np.sqrt(a @ a)), _SHORTEST) * max(float(np.sqrt(b @ b)), _SHORTEST)
    return float(np.float32(a @ b / lengths))
