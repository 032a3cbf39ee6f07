"""What crosses between a client and the engine. Plain msgspec structs: the same in process and over zmq."""

from __future__ import annotations

import msgspec

from octavo.pooling.params import Pooled, PoolingWork
from octavo.sampling.params import SamplingParams


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What the text of an answer must be; made, and found to compile, by `octavo.grammar`."""

    text: str
    after: str = ""  # the text is free up to where this stands for the first time (the end of a reasoning block)
    opening: int | None = None  # the token that begins that block, where the answer may also do without
    max_digits: int | None = None  # of a number in a JSON text, where anything else may follow: so numbers end


class Thinking(msgspec.Struct, frozen=True, array_like=True):
    """How many tokens of reasoning an answer may have, and the marks of the block. Without `opening_id` the answer starts
    inside of it."""

    budget: int
    opening_id: int | None
    closing_ids: list[int]  # what closes the block; the first of them does not stand inside of one


class Request(msgspec.Struct, frozen=True):
    """One validated request: nothing in it can fail for a reason that the client could have been told.

    With `params.n > 1` the engine makes n sequences of it (`RequestDelta.index`). `params.seed` is None only until
    submit; whoever submits fills it (from entropy, or from `--seed`), so that a preempted request draws the same numbers.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float  # time.time()
    eos_token_ids: list[int] = []  # the tokenizer's own first, then those of config and generation config
    vocab_size: int | None = None  # ids from here on are never drawn: the model's matrix is padded beyond the tokenizer's
    cache_salt: str | None = None  # the prefix cache is shared only among requests with the same one
    priority: int = 0  # the lower is served first, under the scheduling policy "priority"
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    bad_words_token_ids: list[list[int]] = []  # tokens of params.bad_words; the last of each is not drawn behind the others
    pooling: PoolingWork | None = None  # of a pooling model: one vector is wanted, and no token


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs at one position. `token_ids[0]` is the token there (sampled, or of the prompt); the most likely ones
    follow, in falling order (the token itself is repeated there when it is among them)."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int  # of token_ids[0], 1 is the most likely

    def ranked(self) -> dict[int, tuple[float, int]]:
        """Token id -> (logprob, rank), each id once: the token there first, then the most likely ones."""
        ranks = [self.rank, *range(1, len(self.token_ids))]
        result: dict[int, tuple[float, int]] = {}
        for token_id, logprob, rank in zip(self.token_ids, self.logprobs, ranks, strict=True):
            result.setdefault(token_id, (logprob, rank))
        return result


class RequestDelta(msgspec.Struct, omit_defaults=True, gc=False):
    """What one engine step added to one sequence of a request."""

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None  # one per token id, when asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # whole prompt, first entry None; with index 0's first delta
    finish_reason: str | None = None  # stop | length | abort | error
    stop_reason: int | None = None  # the stop token's id, unless it is the tokenizer's EOS
    error: str | None = None  # with finish_reason "error"
    is_refusal: bool = False  # with `error`: what the request asks for cannot be had; the engine is as it should be
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache at first; with the first delta
    num_preemptions: int = 0
    scheduled_time: float = 0.0  # time.time() of the first step that computed any of it; with the first delta
    pooled: Pooled | None = None  # with the one delta of a pooling request, whose finish_reason is "stop"


class EngineStats(msgspec.Struct, omit_defaults=True):
    """The engine's counters, cumulative since its start, and gauges as of the step that carries them.

    Sequences are counted, n for a request. At every moment num_received = num_finished + num_aborted + num_failed +
    num_running + num_waiting.
    """

    num_received: int = 0
    num_finished: int = 0  # by stop or length; a stop string that the client found included
    num_aborted: int = 0
    num_failed: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_preemptions: int = 0
    num_swap_preemptions: int = 0  # of these, with what was computed kept; the others compute it again
    num_evicted_blocks: int = 0  # cached blocks that were overwritten
    num_copied_blocks: int = 0  # on write
    num_swapped_out_blocks: int = 0  # to host memory
    num_swapped_in_blocks: int = 0
    num_host_blocks: int = 0  # slots of host memory, and of these those in use
    num_used_host_blocks: int = 0
    num_steps: int = 0
    iteration_tokens: int = 0  # tokens computed in this step
    prefix_cache_queries: int = 0  # prompt tokens that were looked up, and of these those found
    prefix_cache_hits: int = 0
    external_cache_queries: int = 0  # prompt tokens that the cache did not have, and of these those in host memory or files
    external_cache_hits: int = 0


class EngineStatus(msgspec.Struct, frozen=True):
    """How far the engine is. phase: starting | downloading | planning | loading weights | allocating cache |
    ready | dead."""

    phase: str
    percent: float = 0.0
    message: str = ""  # with dead: the one-line reason
    seconds: dict[str, float] = {}  # finished phases
    table: dict[str, str] = {}  # the start-up table's rows, with ready
    max_model_len: int | None = None  # with ready: what memory allows, where the option says auto

    @property
    def is_ready(self) -> bool:
        """Whether the engine takes steps."""
        return self.phase == "ready"

    @property
    def is_dead(self) -> bool:
        """Whether it never will again."""
        return self.phase == "dead"


class EngineOutput(msgspec.Struct, omit_defaults=True):
    """What one `poll` returns; empty when nothing happened within the timeout."""

    deltas: list[RequestDelta] = []
    stats: EngineStats | None = None
    status: EngineStatus | None = None
