"""The flat token batch that a model's forward pass takes: no padding, no prefill or decode phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Batch:
    """Sequences back to back. t = tokens in all, s = sequences, b = blocks of the longest block table."""

    token_ids: NDArray[np.int32]  # [t]
    positions: NDArray[np.int32]  # [t], from 0 in each sequence
    slot_mapping: NDArray[np.int64]  # [t], block id * block size + offset: where the token's K and V go
    query_starts: NDArray[np.int32]  # [s + 1], sequence i has tokens query_starts[i] : query_starts[i + 1]
    seq_lens: NDArray[np.int32]  # [s], keys in the cache after this step, the new ones included
    block_tables: NDArray[np.int32]  # [s, b], ids of the blocks that hold keys 0 .. seq_lens[i] - 1; the rest is unused
    logits_rows: NDArray[np.int32]  # [r], the tokens (rows of [t]) whose logits are wanted
    token_types: NDArray[np.int32] | None = None  # [t], 1 in the second text of a pair; only encoders have them
