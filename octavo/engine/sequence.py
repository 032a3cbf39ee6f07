"""One of the n sequences of a request, as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.cache.block_pool import BlockPool
from octavo.cache.block_table import BlockTable
from octavo.cache.prefix_index import block_digest, root_digest
from octavo.engine.request import Request, TokenLogprobs


@dataclass(slots=True)
class PromptUse:
    """What the n sequences of a request have in common beside the request."""

    num_cached_tokens: int | None = None  # of the prompt, found in the cache when the first of them was admitted
    grammar: Any = None  # what was built of the request's grammar, so that it stays built


class Sequence:
    """Prompt and output so far, and how much of them is in the KV cache.

    There is no phase: a sequence has `num_tokens` known tokens, of which the first `num_computed` are in the cache, and
    is given steps until the two meet; the step in which they meet yields the next token.

    Of sequences of one request that are admitted together the first computes the prompt, and the others, its followers,
    wait for it with a row and without blocks.
    """

    __slots__ = (
        "_digests",
        "cache_generation",
        "ending_ids",
        "followers",
        "index",
        "is_in_runner",
        "last_place",
        "leader",
        "num_preemptions",
        "num_prompt_tokens",
        "output_token_ids",
        "prompt_logprobs",
        "prompt_use",
        "request",
        "row",
        "scheduled_time",
        "table",
        "turn",
    )

    def __init__(self, request: Request, index: int, pool: BlockPool, prompt_use: PromptUse, max_model_len: int) -> None:
        self.request = request
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.index = index
        self.prompt_use = prompt_use
        self.turn = (0, 0)  # priority and number: who has the lower one is served first; the scheduler gives it
        self.table = BlockTable(pool)
        self.output_token_ids: list[int] = []
        eos_token_ids = () if request.params.ignore_eos else request.eos_token_ids
        self.ending_ids = frozenset((*eos_token_ids, *(request.params.stop_token_ids or ())))  # tokens that may end it
        room = max_model_len - self.num_prompt_tokens
        max_tokens = request.params.max_tokens
        longest = room if max_tokens is None else min(room, max_tokens)
        self.last_place = longest - 1  # of the output token that ends it by length
        self.row: int | None = None  # in the runner's state arrays; None while waiting
        self.is_in_runner = False  # the runner has been told who has the row
        self.leader: Sequence | None = None  # the one that computes the prompt for this one
        self.followers: list[Sequence] = []
        self.cache_generation = -1  # of the prefix index, when the sequence was admitted
        self._digests: list[bytes] = []  # of the blocks, as far as they were asked for, behind their root
        self.num_preemptions = 0
        self.scheduled_time = 0.0  # time.time() of the first step that computed any of it
        wants_prompt_logprobs = index == 0 and request.params.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = [None] if wants_prompt_logprobs else None

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and output."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def num_computed(self) -> int:
        """Known tokens whose keys and values are in the cache."""
        return self.table.num_tokens

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose keys and values are not in the cache."""
        return self.num_prompt_tokens + len(self.output_token_ids) - self.table.num_tokens

    @property
    def may_skip_computed(self) -> bool:
        """Whether nothing is wanted of the known tokens but their keys and values: as long as prompt logprobs or
        all hidden states are due, all of the prompt is computed, since they come out of that."""
        if self.request.pooling is not None and self.request.pooling.needs_all:
            return False
        return self.prompt_logprobs is None or bool(self.output_token_ids)

    def block_digest(self, number: int, block_size: int) -> bytes:
        """Of the full block with the tokens from number * block_size on. Each is computed once."""
        digests = self._digests
        if not digests:
            digests.append(root_digest(cache_salt=self.request.cache_salt))
        for first in range((len(digests) - 1) * block_size, (number + 1) * block_size, block_size):
            digests.append(block_digest(digests[-1], self._token_ids(first, first + block_size)))
        return digests[number + 1]

    def can_share_prompt_with(self, other: Sequence) -> bool:
        """Whether both are sequences of one request that have not drawn anything yet."""
        return self.request is other.request and not self.output_token_ids and not other.output_token_ids

    def follow(self, leader: Sequence) -> None:
        """Wait for the leader's prompt."""
        self.leader = leader
        leader.followers.append(self)

    def fork(self) -> list[Sequence]:
        """All of the prompt is computed: the followers share it, and are on their own from now on."""
        forked, self.followers = self.followers, []
        for follower in forked:
            follower.leader = None
            self.table.fork(follower.table)
            follower.cache_generation = self.cache_generation
            follower._digests = list(self._digests)
        return forked

    def leave(self) -> None:
        """The sequence ends or gives way before its followers were forked: the first of them computes the prompt then."""
        if self.leader is not None:
            self.leader.followers.remove(self)
            self.leader = None
        if self.followers:
            heir, *others = self.followers
            self.followers, heir.leader = [], None
            for other in others:
                other.follow(heir)

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
            "priority": self.turn[0],
            "prompt_tokens": len(self.request.prompt_token_ids),
            "output_tokens": len(self.output_token_ids),
            "computed_tokens": self.num_computed,
            "blocks": len(self.table.held_ids),
            "preemptions": self.num_preemptions,
        }

    def _token_ids(self, start: int, end: int) -> list[int]:
        prompt = self.request.prompt_token_ids
        inside = prompt[start:end]
        first, last = max(0, start - len(prompt)), max(0, end - len(prompt))
        return inside + self.output_token_ids[first:last]
