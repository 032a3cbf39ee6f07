"""SamplingParams: vLLM's names, defaults and validation texts."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from octavo.errors import ValidationError
from octavo.sampling.keywords import NamedFields
from octavo.sampling.structured import StructuredOutputsParams
from octavo.sampling.validation import validate

GREEDY_TEMPERATURE = 0.01
"""Below this temperature the most likely token is taken. (vLLM draws at 0.01 there, which is nearly always the same.)"""


class SamplingType(IntEnum):
    """How the next token is found; RANDOM_SEED is RANDOM with a seed that the user chose."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


MAX_BEAM_WIDTH = 64


class BeamSearchParams(msgspec.Struct, omit_defaults=True, metaclass=NamedFields):
    """How `LLM.beam_search` looks for the likeliest answers. `temperature` is vLLM's; likelihoods do not depend on it.

    Raises `ValidationError` for a value outside its range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0  # of two equally likely answers, above 0 the longer and below 0 the shorter is preferred
    include_stop_str_in_output: bool = False
    structured_outputs: None = None  # not with beam search
    skip_special_tokens: bool = True
    allowed_token_ids: None = None  # not with beam search

    def __post_init__(self) -> None:
        for name in ("structured_outputs", "allowed_token_ids"):
            if getattr(self, name) is not None:
                raise ValidationError(f"{name} cannot be used with beam search", parameter=name)
        check_beam_search(self.beam_width, self.length_penalty)
        self.sampling()

    def sampling(self) -> SamplingParams:
        """What the search has in common with sampling; `n` is the width."""
        return SamplingParams(
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )


def check_beam_search(width: int, length_penalty: float) -> None:
    """ValidationError for a width or penalty that no search can have."""
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= MAX_BEAM_WIDTH:
        raise ValidationError(f"The beam width must be in [1, {MAX_BEAM_WIDTH}], got {width!r:.40}.", parameter="n")
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float) or not abs(length_penalty) <= 100:
        text = f"length_penalty must be a number in [-100, 100], got {length_penalty!r:.40}."
        raise ValidationError(text, parameter="length_penalty")


class SamplingParams(msgspec.Struct, omit_defaults=True, metaclass=NamedFields):
    """How to choose tokens. The order in which the fields act is written in `octavo.sampling.sampler`.

    Raises `ValidationError` for a value of a wrong type or outside its range (`octavo.sampling.validation` has the rules).
    Construction normalises: numbers become plain int and float, `stop` and `stop_token_ids` lists (the latter without
    repeats), `logit_bias` maps int to values clamped to [-100, 100], seed -1 becomes None. A decoded copy is equal.

    Two values mean something of their own here. `temperature` in [0, 0.01) is greedy. `top_p=0` is accepted (vLLM refuses
    it) and keeps the most likely token alone.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None  # a list once constructed
    stop_token_ids: list[int] | None = None  # a list once constructed
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None  # so many of the most likely ones beside the sampled one; -1: the whole vocabulary
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None  # no other is drawn
    thinking_token_budget: int | None = None  # tokens of reasoning, behind which its end is forced
    bad_words: list[str] | None = None  # not drawn as their usual tokens; a list once constructed

    def __post_init__(self) -> None:
        validate(self)

    @staticmethod
    def from_optional(**values: Any) -> SamplingParams:
        """Construct where None means "not given", as fields of a JSON body do. `max_tokens=None` stays: no limit."""
        return SamplingParams(**{name: value for name, value in values.items() if value is not None or name == "max_tokens"})

    def clone(self) -> SamplingParams:
        """A copy that shares no list or dict with this one, validated again (fields may have been assigned since)."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        copies = {name: type(value)(value) for name, value in fields.items() if isinstance(value, list | dict)}
        return SamplingParams(**{**fields, **copies})

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, with nothing drawn."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def sampling_type(self) -> SamplingType:
        """Greedy, random, or random with a seed."""
        if self.is_greedy:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED
