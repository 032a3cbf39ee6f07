"""Whether a request can ever run: asked by the engine on arrival."""

from __future__ import annotations

from octavo.cache.reach import Reach
from octavo.engine.request import Request
from octavo.errors import ValidationError


def check_can_run(request: Request, *, num_blocks: int, reach: Reach, max_model_len: int, in_chunks: bool = True) -> None:
    """ValidationError with the arithmetic if one sequence of the request could need more blocks than the cache has, or if
    its prompt is empty or leaves no room for a token of output.

    The last token of a sequence is never written to the cache, since nothing follows that would attend to it. So a prompt
    that fills the context can be scored (prompt_logprobs) or pooled: its one output token is sampled and needs no place.
    Where all layers see a window, and it is computed in chunks, a sequence of any length gets along with the blocks of that.
    """
    prompt = len(request.prompt_token_ids)
    output = request.params.max_tokens
    needs_no_output = request.params.prompt_logprobs is not None or request.pooling is not None
    most = max_model_len if needs_no_output else max_model_len - 1
    if not 0 < prompt <= most:
        raise ValidationError(
            f"The prompt must have 1 to {most} tokens, got {prompt}.", parameter="input_tokens", value=prompt
        )
    longest = max_model_len if output is None else min(prompt + output, max_model_len)
    written = max(prompt, longest - 1)
    needed = reach.most_blocks(written, 1 if in_chunks else written)
    if needed <= num_blocks:
        return
    fits = num_blocks * reach.block_size + 1 - prompt
    advice = f"Request at most {fits} output tokens" if fits > 0 else "Shorten the prompt"
    raise ValidationError(
        f"The request needs up to {needed} KV cache blocks ({prompt} prompt tokens and up to {longest - prompt} output "
        f"tokens, {reach.block_size} tokens a block), but the cache has only {num_blocks} blocks. {advice}, or start "
        "the server with more KV cache (--kv-cache-memory-bytes, --memory-utilization).",
        parameter="max_tokens" if fits > 0 else "input_tokens",
        value=output if fits > 0 else prompt,
    )
