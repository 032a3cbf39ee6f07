"""MXFP4 as gpt-oss is published: experts alone are packed, several matrices in a tensor `*_blocks` and one of `*_scales`."""

from __future__ import annotations

from octavo.weights.checkpoint import StoredProjection
from octavo.weights.quantized.source import Settings, StoredTensors


class MXFP4:
    """See `Scheme`. Says how the checkpoint was made, and that none of its projections is packed: models take experts by
    `Weights.take_matrices`, which knows packed ones by the names of their tensors."""

    method = "mxfp4"

    def __init__(self, source: StoredTensors, settings: Settings) -> None:
        pass

    def projection(self, name: str) -> StoredProjection | None:
        """None, whatever the name."""
        return None
