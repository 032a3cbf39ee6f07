"""`--max-num-queued-reqs` and `--max-num-queued-tokens`: how much the server takes on before it says 503."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from octavo.config import EngineConfig
from octavo.errors import UnavailableError
from octavo.server.outflow import Outflow


class QueueFullError(UnavailableError):
    """As much is in the server as it was told to take."""

    reason = "full"


class Admission:
    """Counts sequences that have not ended, whether they run or wait, and tokens of prompts of which nothing has been
    generated yet: what the two options limit, as in vLLM. A request is counted from when it is let in, so that of many that
    arrive at once no more get in than fit; and one that finds nothing there is always let in, however large it is."""

    def __init__(self, config: EngineConfig) -> None:
        self.num_sequences = 0
        self.num_prompt_tokens = 0
        self.rejections: Counter[str] = Counter(max_num_queued_reqs=0, max_num_queued_tokens=0)  # HTTP requests
        self._sequences_gone, self._tokens_gone = Outflow(), Outflow()
        self._max_sequences = config.max_num_queued_reqs
        self._max_prompt_tokens = config.max_num_queued_tokens

    def visit(self, num_sequences: int) -> Visit:
        """Let a request in. QueueFullError if its sequences are too many now."""
        here, limit = self.num_sequences, self._max_sequences
        if limit is not None and here and here + num_sequences > limit:
            seconds = self._sequences_gone.seconds_until(min(here + num_sequences - limit, here))
            raise self._full("max_num_queued_reqs", f"{here} requests are running or waiting", limit, seconds)
        return Visit(self, num_sequences)

    def check_prompts(self, num_tokens: int) -> None:
        """QueueFullError if so many tokens more are too many now."""
        here, limit = self.num_prompt_tokens, self._max_prompt_tokens
        if limit is not None and here and here + num_tokens > limit:
            seconds = self._tokens_gone.seconds_until(min(here + num_tokens - limit, here))
            raise self._full("max_num_queued_tokens", f"{here} prompt tokens are to be computed first", limit, seconds)

    def sequences_left(self, count: int) -> None:
        """So many sequences have ended."""
        self.num_sequences -= count
        self._sequences_gone.went(count, self.num_sequences)

    def prompts_left(self, num_tokens: int) -> None:
        """Prompts of so many tokens have given their first tokens, or have gone."""
        self.num_prompt_tokens -= num_tokens
        self._tokens_gone.went(num_tokens, self.num_prompt_tokens)

    def counts(self) -> Mapping[str, int]:
        """What is here now, for people."""
        return {"sequences": self.num_sequences, "prompt_tokens": self.num_prompt_tokens}

    def _full(self, option: str, what: str, limit: int, seconds: int) -> QueueFullError:
        self.rejections[option] += 1
        flag = "--" + option.replace("_", "-")
        text = f"The server is full: {what}, and {flag} allows {limit}. Please try again in a moment."
        return QueueFullError(text, retry_after=seconds)


class Visit:
    """What one HTTP request has in the counts."""

    def __init__(self, admission: Admission, num_sequences: int) -> None:
        self._admission = admission
        self._num_sequences = num_sequences
        self._num_prompt_tokens = 0
        admission.num_sequences += num_sequences

    def add_prompts(self, num_tokens: int) -> None:
        """The prompts are known. QueueFullError if their tokens are too many now."""
        self._admission.check_prompts(num_tokens)
        self._num_prompt_tokens += num_tokens
        self._admission.num_prompt_tokens += num_tokens

    def prompt_computed(self, num_tokens: int) -> None:
        """A prompt of so many tokens has given its first token."""
        self._num_prompt_tokens -= num_tokens
        self._admission.prompts_left(num_tokens)

    def sequence_ended(self) -> None:
        """One sequence less."""
        self._num_sequences -= 1
        self._admission.sequences_left(1)

    def leave(self) -> None:
        """The request is over: nothing of it stays counted."""
        if self._num_sequences:
            self._admission.sequences_left(self._num_sequences)
        if self._num_prompt_tokens:
            self._admission.prompts_left(self._num_prompt_tokens)
        self._num_sequences = self._num_prompt_tokens = 0
