"""From what the engine sends to what a client gets: token ids -> text -> stop strings (-> reasoning -> tool calls).

One object per sequence, the same for streaming and not: whoever answers at once pushes every delta and joins the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.engine.request import RequestDelta, TokenLogprobs
from octavo.text.detokenizer import Detokenizer
from octavo.text.stop import StopStrings

if TYPE_CHECKING:
    from octavo.sampling.params import SamplingParams
    from octavo.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Piece:
    """What one push released.

    `text` is final: whole characters, nothing that may yet turn out to be a stop string. `token_ids` and `logprobs` (one
    per id) come at once, with the delta that brought them, though their text may follow in a later piece; joined over
    all pieces they are the whole output. `finish_reason` stop | length | abort | error, in the last piece; `stop_reason`
    the stop string or the stop token's id. `error` goes with finish_reason "error".
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None


class OutputPipeline:
    """The stages of one sequence. Without a tokenizer, or with `detokenize=False`, there is no text.

    A stop string ends the sequence here (`finish_reason` "stop", `stop_reason` the string): the caller must then abort
    it in the engine. Tokens after the one that completed the stop string are dropped, whichever delta they come in. A
    stop string counts only if it is completed after the first `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams, prompt_token_ids: Sequence[int] = ()) -> None:
        self.is_finished = False
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._stop = StopStrings(_stop_list(params.stop), include_in_output=self._include_stop)
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = Detokenizer(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )

    def push(self, delta: RequestDelta) -> Piece:
        """What the delta releases. After the end: nothing."""
        if self.is_finished:
            return Piece()
        piece = Piece(finish_reason=delta.finish_reason, stop_reason=delta.stop_reason, error=delta.error)
        text, used, matched = self._text_of(delta)
        if matched is not None:
            piece.finish_reason, piece.stop_reason, piece.error = "stop", matched, None
        piece.text = text
        piece.token_ids = delta.token_ids[:used]
        piece.logprobs = None if delta.logprobs is None else delta.logprobs[:used]
        self.is_finished = piece.finish_reason is not None
        return piece

    def _text_of(self, delta: RequestDelta) -> tuple[str, int, str | None]:
        """(released text, tokens used, stop string that was completed)."""
        if self._detokenizer is None:
            return "", len(delta.token_ids), None
        released: list[str] = []
        last = len(delta.token_ids) - 1
        for position, token_id in enumerate(delta.token_ids):
            self._num_tokens += 1
            if position == last and delta.finish_reason == "stop" and not self._include_stop:
                break  # the token that stopped it is no text
            text, matched = self._search(self._detokenizer.push(token_id))
            released.append(text)
            if matched is not None:
                return "".join(released), position + 1, matched
        if delta.finish_reason is not None:
            text, matched = self._search(self._detokenizer.finish())
            released.append(text)
            if matched is not None:
                return "".join(released), last + 1, matched
            released.append(self._stop.finish())
        return "".join(released), last + 1, None

    def _search(self, text: str) -> tuple[str, str | None]:
        return self._stop.push(text, armed=self._num_tokens > self._min_tokens)


def _stop_list(stop: str | list[str] | None) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())
