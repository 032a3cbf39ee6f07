"""A short fixed prompt through a model that was just loaded: weights that were misread show there, and not in an answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octavo.errors import LoadError
from octavo.kernels.ops import KVCache
from octavo.models.registry import Model
from octavo.runner.batch import Batch

_TOKENS = 8
_FLAT = 1e-5  # of the largest logit: what rounding makes of no difference


def check_model(model: Model, cache: KVCache, path: Path, *, pools: bool = False) -> None:
    """LoadError where logits (of one that `pools` the hidden states) are not finite, or are flat: all ids are as likely, or
    the prompt makes no difference. The cache is empty afterwards, and its memory untouched."""
    tokens = min(_TOKENS, cache.block_size)
    vocabulary = model.config.vocab_size
    positions = np.arange(tokens, dtype=np.int32)
    batch = Batch(
        token_ids=(positions * max(1, vocabulary // tokens) % vocabulary).astype(np.int32),
        positions=positions,
        slot_mapping=positions.astype(np.int64),
        query_starts=np.array([0, tokens], np.int32),
        seq_lens=np.array([tokens], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        logits_rows=positions,
        token_types=np.zeros(tokens, np.int32) if model.config.is_encoder else None,
    )
    hidden = model.forward(batch, cache)
    cache.release()
    name, logits = ("hidden states", hidden) if pools else ("logits", model.logits(hidden))
    advice = "the file may be damaged, or be stored in another way than its configuration says"
    if not bool(np.isfinite(logits).all()):
        raise LoadError(f"{path}: after loading, a test prompt gives {name} that are not finite; {advice}")
    least = _FLAT * float(np.abs(logits).max())
    if float(np.ptp(logits, axis=1).max()) <= least or float(np.ptp(logits, axis=0).max()) <= least:
        raise LoadError(f"{path}: after loading, a test prompt gives the same {name} everywhere; {advice}")
