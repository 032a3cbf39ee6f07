"""When a sequence ends by its tokens. Stop strings are found where the text is, in `octavo.text.stop`."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.request import Request


def finish_reason(request: Request, output_token_ids: Sequence[int], max_model_len: int) -> tuple[str | None, int | None]:
    """Finish reason ("stop", "length" or None) and stop reason (the stop token's id, unless it is an EOS) after the newest
    of `output_token_ids`. Nothing but a full context ends a sequence before `min_tokens`."""
    params, count = request.params, len(output_token_ids)
    if count >= params.min_tokens:
        newest = output_token_ids[-1]
        if not params.ignore_eos and newest in request.eos_token_ids:
            return "stop", None
        if newest in (params.stop_token_ids or ()):
            return "stop", newest
    is_full = len(request.prompt_token_ids) + count >= max_model_len
    reached_limit = params.max_tokens is not None and count >= params.max_tokens
    return ("length" if is_full or reached_limit else None), None
