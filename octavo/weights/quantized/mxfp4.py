"""MXFP4 as gpt-oss is published: experts alone are packed, several matrices in a tensor `*_blocks` and one of `*_scales`."""

from __future__ import annotations

from octavo.weights.checkpoint import StoredProjection
from octavo.weights.quantized.source import Settings, StoredTensors


class MXFP4:
    """See `Scheme`."""

    method = "mxfp4"

    def __init__(self, source: StoredTensors, settings: Settings) -> None:
        pass

    def projection(self, name: str) -> StoredProjection | None:
        """None: experts are taken by `Weights.take_matrices`, and the rest are ordinary tensors."""
        return None
