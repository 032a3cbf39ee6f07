"""Opening a checkpoint: which format a path holds, and the one line that says why it holds none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octavo.config import EngineConfig
from octavo.errors import ConfigError, LoadError
from octavo.kernels.ops import Quantization
from octavo.weights.checkpoint import PLAIN_TYPES, Checkpoint
from octavo.weights.json_file import read_json
from octavo.weights.safetensors import SafetensorsCheckpoint

_DTYPES = {dtype.name: dtype for dtype in PLAIN_TYPES.values()}


def open_checkpoint(path: Path) -> Checkpoint:
    """A model directory or a .gguf file. Reads headers only. LoadError: one line that says what the path holds."""
    if path.is_dir():
        if not (path / "config.json").exists():
            raise LoadError(_why_no_model(path))
        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise LoadError(f"{path} does not exist")
    if path.suffix != ".gguf":
        raise LoadError(f"{path} is neither a model directory nor a .gguf file")
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


def _why_no_model(path: Path) -> str:
    if (path / "adapter_config.json").exists():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        return f"{path} is a LoRA adapter and no model; give its base model{f' {base}' if base else ''} instead"
    files = sorted(file.name for file in path.iterdir())
    if gguf := [name for name in files if name.endswith(".gguf")]:
        return f"{path} has no config.json but {', '.join(gguf[:3])}; give the path of the .gguf file itself"
    found = f"it holds {', '.join(files[:4])}{' ...' if len(files) > 4 else ''}" if files else "it is empty"
    return f"{path} is not a model directory: it has no config.json ({found})"
