"""Numbers as they go out: as JSON, in base64, or as plain bytes."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.server.endpoint import Content
from octavo.server.pooling.results import MOST_NUMBERS
from octavo.server.pooling.schema import PoolingUsage

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]
_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_BITS: dict[int, type[Any]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class NumberFormat(msgspec.Struct, frozen=True):
    """How a body wants its numbers."""

    encoding_format: EncodingFormat
    embed_dtype: EmbedDType
    endianness: Endianness

    @property
    def is_json(self) -> bool:
        """Whether the answer is JSON, and not plain bytes."""
        return self.encoding_format in ("float", "base64")

    @property
    def most_numbers(self) -> int:
        """How many an answer can have: fewer as text."""
        return MOST_NUMBERS // 4 if self.encoding_format == "float" else MOST_NUMBERS

    def shown(self, values: NDArray[np.float32]) -> Any:
        """In JSON: as a list (encoded at once, for numbers are large as objects), or in base64."""
        if self.encoding_format == "float":
            return msgspec.Raw(msgspec.json.encode(values.tolist()))
        return base64.b64encode(self.binary(values)).decode()

    def binary(self, values: NDArray[np.float32]) -> bytes:
        """As bytes of the dtype, in the order asked for."""
        dtype = _DTYPES[self.embed_dtype]
        bits = np.ascontiguousarray(values.astype(dtype)).view(_BITS[dtype.itemsize])
        wanted = sys.byteorder if self.endianness == "native" else self.endianness
        ordered: bytes = (bits if wanted == sys.byteorder else bits.byteswap()).tobytes()
        return ordered

    def content(
        self, id: str, created: int, model: str, vectors: Sequence[NDArray[np.float32]], usage: PoolingUsage
    ) -> Content:
        """An answer of plain bytes, one vector after the other; the header `metadata` says where each lies, unless the
        bytes alone are wanted."""
        parts = [self.binary(values) for values in vectors]
        headers: list[tuple[bytes, bytes]] = []
        if self.encoding_format == "bytes":
            items, start = [], 0
            for i, (part, values) in enumerate(zip(parts, vectors, strict=True)):
                items.append(
                    {
                        "index": i,
                        "embed_dtype": self.embed_dtype,
                        "endianness": self.endianness,
                        "start": start,
                        "end": start + len(part),
                        "shape": list(values.shape),
                    }
                )
                start += len(part)
            counts = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens}
            metadata = {"id": id, "created": created, "model": model, "data": items, "usage": counts}
            headers = [(b"metadata", _ascii(metadata))]
        return Content(b"".join(parts), b"application/octet-stream", headers)


def _ascii(value: Any) -> bytes:
    """JSON that a header can hold: an id may have any character."""
    return json.dumps(value, separators=(",", ":")).replace("\x7f", r"\u007f").encode()
