"""A checkpoint as the rest sees it: a configuration and named tensors, whatever the file format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Checkpoint(Protocol):
    """An opened model. Tensor names and `hf_config` keys are Hugging Face's; the GGUF reader translates (and undoes
    llama.cpp's permutation of q and k)."""

    path: Path
    hf_config: dict[str, Any]  # config.json
    generation_config: dict[str, Any]  # generation_config.json, {} if there is none

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, without reading any."""

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in the file, for the progress bar."""

    def read(self, name: str) -> NDArray[Any]:
        """float32, float16 or bfloat16 (ml_dtypes): a view on the mapped file where the format allows it, else dequantised."""


class Weights:
    """Strict, pull-based loading: building a model takes each tensor once by name and shape; `finish` refuses leftovers.

    `scope("model").scope("layers.3")` prefixes names. A family's file is then its own mapping.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: np.dtype[Any], progress: Callable[[int, int], None] | None = None) -> None: ...

    def scope(self, name: str) -> Weights:
        """The same weights, with `name.` before every name asked for."""
        ...

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds the tensor (optional biases, untied heads)."""
        ...

    def take(self, name: str, shape: Sequence[int]) -> NDArray[Any]:
        """The tensor as `dtype` (converted only if the file differs). LoadError names a missing tensor or both shapes."""
        ...

    def ignore(self, name: str) -> None:
        """Count a stored tensor as used without reading it (a tied head that is stored as well, rotary buffers)."""
        ...

    def finish(self) -> None:
        """LoadError naming the tensors that nobody took."""
        ...
