"""Opening a checkpoint: which format a path holds, and in which types its weights are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.kernels.ops import Quantization
from octavo.weights.checkpoint import PLAIN_TYPES, Checkpoint
from octavo.weights.local import check_model_path
from octavo.weights.safetensors import SafetensorsCheckpoint

_DTYPES = {dtype.name: dtype for dtype in PLAIN_TYPES.values()}


def open_checkpoint(path: Path) -> Checkpoint:
    """A model directory or a .gguf file. Reads headers only. LoadError: one line that says what the path holds."""
    check_model_path(path)
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    from octavo.weights.gguf import GGUFCheckpoint  # not before it is needed: the gguf library takes 0.05 s

    return GGUFCheckpoint(path)


def weights_dtype(choice: str, model_dtype: str) -> np.dtype[Any]:
    """The dtype of weights for `--dtype`: `auto` is `ModelConfig.dtype` (bfloat16 for GGUF)."""
    return _DTYPES[model_dtype if choice == "auto" else choice]


def weights_quantization(config: EngineConfig, checkpoint: Checkpoint) -> Quantization | None:
    """What projections are rounded to for `--quantization` and the options beside it; None where they stay as they are
    stored. ConfigError where the option and the checkpoint say different things."""
    method = checkpoint.quantization_method
    if method is not None:
        if config.quantization not in (None, method):
            raise ConfigError(
                f"--quantization {config.quantization} was given, but {checkpoint.path} is quantized with {method}; leave "
                "the option out, or take the model's 16-bit original"
            )
        return None
    asked = {"int8": 8, "int16": 16}.get(config.quantization_activations)
    match config.quantization:
        case None:
            return None
        case "int8":
            return Quantization(8, activation_bits=asked or 16)
        case "int4":
            return Quantization(4, config.quantization_group_size or 32, asked or 8)
        case "fp8":
            return Quantization(8, is_float=True)
        case other:
            raise ConfigError(
                f"--quantization {other} was given, but {checkpoint.path} is no {other} checkpoint; leave the option out, "
                "or give int8, int4 or fp8 to round while loading"
            )


def packed_activation_bits(config: EngineConfig) -> int:
    """What activations are rounded to beside the integers of a quantized checkpoint."""
    return 8 if config.quantization_activations == "int8" else 16
