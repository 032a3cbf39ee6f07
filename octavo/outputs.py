"""What `LLM` returns, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class Logprob:
    """The log probability of one token at one position. `rank` counts from 1, the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None  # None without a tokenizer


LogprobsOnePosition = dict[int, Logprob]
"""Token id -> Logprob. The token that stands there comes first, then the most likely ones in falling order."""


@dataclass
class CompletionOutput:
    """One of the n answers to a prompt.

    `finish_reason` is "stop", "length", "abort" or "error", and None while it is still being written. `stop_reason` is the
    stop string or the stop token's id that ended it; None for an end-of-sequence token.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None  # sum over token_ids; None unless logprobs were asked for
    logprobs: list[LogprobsOnePosition] | None = None  # one per token id, when asked for
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether no more text follows."""
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """When things happened: seconds since the epoch as `time.time()` gives them; 0.0 for what has not happened."""

    arrival_time: float = 0.0
    scheduled_ts: float = 0.0  # the first step that computed any of the prompt
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0  # first_token_ts - arrival_time
    num_generation_tokens: int = 0  # of all n
    num_preemptions: int = 0


@dataclass
class RequestOutput:
    """A prompt and its n answers.

    `error` is set when the prompt was refused, or failed in the engine: its outputs then have the finish_reason "error",
    with whatever had been written before.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[LogprobsOnePosition | None] | None = None  # one per prompt token, the first None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    error: str | None = None


@dataclass
class PoolingOutput:
    """What `LLM.encode` gives for a prompt: float32 numbers [n], or [tokens, n] of a token task."""

    data: NDArray[np.float32]


@dataclass
class EmbeddingOutput:
    """What `LLM.embed` gives for a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers there are."""
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    """What `LLM.classify` gives for a prompt: one number for each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many numbers there are."""
        return len(self.probs)


@dataclass
class ScoringOutput:
    """What `LLM.score` gives for a pair."""

    score: float


_Output = TypeVar("_Output")


@dataclass
class PoolingRequestOutput(Generic[_Output]):
    """A prompt and what a pooling model made of it."""

    request_id: str
    outputs: _Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """Of `LLM.embed`."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """Of `LLM.classify`."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """Of `LLM.score`."""


@dataclass
class BeamSearchSequence:
    """One answer of a beam search. `tokens` and `text` begin with the prompt, as in vLLM."""

    tokens: list[int]
    logprobs: list[LogprobsOnePosition]  # one per token of the answer
    cum_logprob: float
    text: str | None
    finish_reason: str | None
    stop_reason: int | None


@dataclass
class BeamSearchOutput:
    """The answers to one prompt, the best first."""

    sequences: list[BeamSearchSequence]
