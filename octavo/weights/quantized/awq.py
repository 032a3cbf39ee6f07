"""AWQ (Lin et al., 2023) in AutoAWQ's GEMM layout: w = (q - zero) * scale, 4 bits.

qweight I32 [in, out / 8], qzeros I32 [in / group, out / 8], scales [in / group, out]. Symmetric files (`zero_point` false:
so gptqmodel writes unless told otherwise) have the same tensors, with zeros of 8. A module that was left out has an ordinary
weight, whatever `modules_to_not_convert` says.
"""

from __future__ import annotations

import numpy as np

from octavo.kernels.packed import PackedTensor, Packing
from octavo.weights.checkpoint import PLAIN_TYPES, StoredProjection
from octavo.weights.quantized.source import (
    Settings,
    StoredTensors,
    expect_shape,
    group_of,
    matrix_shape,
    scale_dtype,
    stored_projection,
    stored_scales,
)
from octavo.weights.quantized.unpack import unpack_awq


class AWQ:
    """See `Scheme`."""

    method = "awq"

    def __init__(self, source: StoredTensors, settings: Settings) -> None:
        """LoadError for a layout or a number of bits that is not supported."""
        self._source = source
        version = settings.text("version", "checkpoint_format", "format", default="gemm")
        if version != "gemm":
            raise settings.refuse(f"version {version!r}", "gemm")
        bits = settings.integer("bits", "w_bit", default=4)
        if bits != 4:
            raise settings.refuse(f"{bits} bits", "4 bits")

    def projection(self, name: str) -> StoredProjection | None:
        """See `Checkpoint.projection`."""
        source, qweight, scales = self._source, f"{name}.qweight", f"{name}.scales"
        if source.type_name(qweight) is None:
            return None
        inputs, words = matrix_shape(source, qweight, "I32")
        outputs = words * 8
        dtype = scale_dtype(source, scales)
        groups, _ = matrix_shape(source, scales, *PLAIN_TYPES)
        expect_shape(source, scales, (groups, outputs))
        expect_shape(source, f"{name}.qzeros", (groups, words), "I32")
        packing = Packing("int4", group_of(source, name, inputs, groups), dtype, "zero")

        def load() -> PackedTensor:
            codes, zeros = unpack_awq(source.stored(qweight)), unpack_awq(source.stored(f"{name}.qzeros"))
            return PackedTensor(packing, codes, np.ascontiguousarray(stored_scales(source, scales).T), zeros)

        return stored_projection(source, (outputs, inputs), packing, (qweight, f"{name}.qzeros", scales), load)
