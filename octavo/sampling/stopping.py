"""When a sequence ends by its tokens. Stop strings are found where the text is, in `octavo.text.stop`."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.request import Request


def finish_reason(request: Request, output_token_ids: Sequence[int], max_model_len: int) -> tuple[str | None, int | None]:
    """Finish reason ("stop", "length" or None) and stop reason after the newest of `output_token_ids` (at least one).

    - A token of `stop_token_ids` stops, under ignore_eos and where it is an EOS too; stop reason is its id.
    - An EOS stops unless ignore_eos. As in vLLM the stop reason is None for the tokenizer's own EOS, the first of
      `eos_token_ids`, and the id for those that the model's configs add, so that a client can tell which one it was.
    - Before min_tokens neither of them stops.
    - max_tokens, or a full context, is "length", even before min_tokens.
    """
    params, count, newest = request.params, len(output_token_ids), output_token_ids[-1]
    if count >= params.min_tokens:
        if newest in (params.stop_token_ids or ()):
            return "stop", newest
        if not params.ignore_eos and newest in request.eos_token_ids:
            return "stop", None if newest == request.eos_token_ids[0] else newest
    is_full = len(request.prompt_token_ids) + count >= max_model_len
    reached_limit = params.max_tokens is not None and count >= params.max_tokens
    return ("length" if is_full or reached_limit else None), None
