"""SamplingParams: vLLM's names, defaults and validation texts."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, omit_defaults=True, dict=True):
    """How to choose tokens. The order in which the fields act is written in `octavo.sampling.sampler`.

    Raises `ValidationError` for a value outside its range.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
