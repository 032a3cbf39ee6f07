"""One of the n sequences of a request, as the engine sees it."""

from __future__ import annotations

from typing import Any

from octavo.cache.block_pool import BlockPool
from octavo.cache.block_table import BlockTable
from octavo.engine.request import Request, TokenLogprobs


class Sequence:
    """Prompt and output so far, and how much of them is in the KV cache.

    There is no phase: a sequence has `num_tokens` known tokens, of which the first `num_computed` are in the cache, and
    is given steps until the two meet; the step in which they meet yields the next token.
    """

    __slots__ = (
        "index",
        "num_computed",
        "num_preemptions",
        "output_token_ids",
        "prompt_logprobs",
        "request",
        "row",
        "scheduled_time",
        "table",
    )

    def __init__(self, request: Request, index: int, pool: BlockPool) -> None:
        self.request = request
        self.index = index
        self.table = BlockTable(pool)
        self.output_token_ids: list[int] = []
        self.num_computed = 0
        self.row: int | None = None  # in the runner's state arrays; None while waiting
        self.num_preemptions = 0
        self.scheduled_time = 0.0  # time.time() of the first step that computed any of it
        wants_prompt_logprobs = index == 0 and request.params.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = [None] if wants_prompt_logprobs else None

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and output."""
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose keys and values are not in the cache."""
        return len(self.request.prompt_token_ids) + len(self.output_token_ids) - self.num_computed

    def collect_prompt_logprobs(self, start: int, logprobs: list[TokenLogprobs]) -> None:
        """Take the entries for prompt positions `start` + 1 onwards; those collected before a preemption are not
        repeated."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs += logprobs[len(self.prompt_logprobs) - start - 1 :]

    def describe(self) -> dict[str, Any]:
        """For `debug_state`."""
        return {
            "request_id": self.request.request_id,
            "index": self.index,
            "prompt_tokens": len(self.request.prompt_token_ids),
            "output_tokens": len(self.output_token_ids),
            "computed_tokens": self.num_computed,
            "blocks": len(self.table.block_ids),
            "preemptions": self.num_preemptions,
        }
