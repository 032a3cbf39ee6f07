"""From what the engine sends to what a client gets: token ids -> text -> stop strings -> reasoning -> tool calls.

One object per sequence, the same for streaming and not: whoever answers at once pushes every delta and joins the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from octavo.engine.request import RequestDelta, TokenLogprobs
from octavo.parsing.parts import Content, Part, merged
from octavo.text.detokenizer import Detokenizer
from octavo.text.stop import StopStrings

if TYPE_CHECKING:
    from octavo.parsing.answer import AnswerParser
    from octavo.sampling.params import SamplingParams
    from octavo.text.tokenizer import Tokenizer


class Piece(msgspec.Struct):
    """What one push released.

    `text` is content and final: whole characters, nothing that may yet turn out to be a stop string or a mark. `parts`
    has the same text in its place among reasoning and calls, if these are looked for, and is empty otherwise.
    `token_ids` and `logprobs` (one per id) come at once, with the delta that brought them, though their text may follow in
    a later piece; joined over all pieces they are the whole output. `finish_reason` stop | length | abort | error, in the
    last piece; `stop_reason` the stop string or the stop token's id. `error` goes with finish_reason "error".
    """

    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    parts: list[Part] = []


class OutputPipeline:
    """The stages of one sequence. Without a tokenizer, or with `detokenize=False`, there is no text.

    A stop string ends the sequence here (`finish_reason` "stop", `stop_reason` the string): the caller must then abort
    it in the engine. Tokens after the one that completed the stop string are dropped, whichever delta they come in. A
    stop string counts only if it is completed after the first `min_tokens` tokens. It is looked for in all of the text,
    reasoning and calls included. In the same way the sequence ends where `parser` allows no more calls and one begins.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        prompt_token_ids: Sequence[int] = (),
        parser: AnswerParser | None = None,
    ) -> None:
        self.is_finished = False
        self.num_reasoning_tokens = 0
        self._parser = parser
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        stop = _stop_list(params.stop)
        self._stop = StopStrings(stop, include_in_output=self._include_stop)
        self._is_plain = parser is None and not any(stop)  # nothing but an end can come of a token, beside its text
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = Detokenizer(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                shown_ids=frozenset() if parser is None else parser.shown_ids,
            )

    @property
    def num_calls(self) -> int:
        """Tool calls that have begun."""
        return 0 if self._parser is None else self._parser.num_calls

    @property
    def has_calls(self) -> bool:
        """Whether the answer so far has tool calls, the last of them complete."""
        return self._parser is not None and self._parser.has_calls

    def push(self, delta: RequestDelta) -> Piece:
        """What the delta releases. After the end: nothing."""
        if self.is_finished:
            return Piece()
        if self._is_plain and delta.finish_reason is None and self._detokenizer is not None:  # by far the most
            self._num_tokens += len(delta.token_ids)
            return Piece(self._detokenizer.push_all(delta.token_ids), delta.token_ids, delta.logprobs)
        piece = Piece(finish_reason=delta.finish_reason, stop_reason=delta.stop_reason, error=delta.error)
        used = len(delta.token_ids)
        if self._detokenizer is not None:
            used = self._read(self._detokenizer, delta, piece)
        if self._parser is not None:
            self._finish(self._parser, piece, is_cut=delta.finish_reason != "stop" or used < len(delta.token_ids))
        piece.token_ids = delta.token_ids[:used]
        piece.logprobs = None if delta.logprobs is None else delta.logprobs[:used]
        self.is_finished = piece.finish_reason is not None
        return piece

    def _read(self, detokenizer: Detokenizer, delta: RequestDelta, piece: Piece) -> int:
        """Put the text of the delta, and an end that it brings, into the piece; the number of its tokens that count."""
        last = len(delta.token_ids) - 1
        for position, token_id in enumerate(delta.token_ids):
            self._num_tokens += 1
            if position == last and delta.finish_reason == "stop" and not self._include_stop:
                break  # the token that stopped it is no text
            was_reasoning = self._parser is not None and self._parser.is_reasoning
            has_ended = self._release(detokenizer.push(token_id), piece)
            self.num_reasoning_tokens += was_reasoning and self._parser is not None and self._parser.is_reasoning
            if has_ended:
                return position + 1
        if delta.finish_reason is not None and not self._release(detokenizer.finish(), piece):
            self._show(self._stop.finish(), piece)
        return last + 1

    def _release(self, text: str, piece: Piece) -> bool:
        """Show what may be shown now that the text has come. Whether the sequence ends with it."""
        shown, matched = self._stop.push(text, armed=self._num_tokens > self._min_tokens)
        self._show(shown, piece)
        is_full = self._parser is not None and self._parser.is_full
        if matched is None and not is_full:
            return False
        piece.finish_reason, piece.stop_reason, piece.error = "stop", matched, None
        return True

    def _show(self, text: str, piece: Piece) -> None:
        if self._parser is None:
            piece.text += text
        elif text:
            piece.parts += self._parser.push(text)

    def _finish(self, parser: AnswerParser, piece: Piece, *, is_cut: bool) -> None:
        """Bring the piece's parts to their end, where the sequence has come to its own."""
        if piece.finish_reason is not None:
            piece.parts += parser.finish(is_cut=is_cut or isinstance(piece.stop_reason, str))
        piece.parts = merged(piece.parts)
        piece.text = "".join([part.text for part in piece.parts if isinstance(part, Content)])


def _stop_list(stop: str | list[str] | None) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())
