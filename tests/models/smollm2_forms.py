"""SmolLM2 in every form in which weights are kept, made here, and the numbers that each form's codes stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np

from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.numpy.quantization import round_weight
from octavo.kernels.ops import Quantization
from octavo.weights.gguf import GGUFCheckpoint
from tests.tools.write_safetensors import smollm2_directory, smollm2_gguf
from tests.weights.gguf_files import Stored, write_gguf
from tests.weights.gguf_k_blocks import BLOCK, round_to_k
from tests.weights.quantized_files import Array, Pack, Tensors, write_quantized
from tests.weights.test_quantized_checkpoints import FORMATS

# 576 inputs are no multiple of 128
CHECKPOINTS = [name for name in FORMATS if name not in ("awq-128", "gptq-128", "w8a16-128")]
WITH_INT8 = ("w8a8", "w4a16-32")  # which of them with activations of 8 bits too
GGUF_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
ROUNDED: dict[str, tuple[dict[str, Any], Quantization]] = {
    "int8": ({}, Quantization(8)),
    "int8, int8 activations": ({"quantization_activations": "int8"}, Quantization(8, activation_bits=8)),
    "int4": ({"quantization_activations": "int16"}, Quantization(4, 32)),
    "int4, int8 activations": ({}, Quantization(4, 32, 8)),
    "int4 in groups of 64": ({"quantization_group_size": 64, "quantization_activations": "int16"}, Quantization(4, 64)),
    "fp8": ({}, Quantization(8, is_float=True)),
}


@dataclass(frozen=True)
class Form:
    """What an LLM opens, with which options, and the numbers that its weights stand for, under Hugging Face's names (None: a
    file that Transformers reads itself)."""

    path: Path
    tensors: Tensors | None
    options: dict[str, Any] = field(default_factory=dict)
    has_8_bit_activations: bool = False


def forms() -> dict[str, Callable[[Path], Form]]:
    """Name -> what makes the form in an empty folder."""
    made: dict[str, Callable[[Path], Form]] = {"bfloat16": lambda folder: _plain()}
    made |= {f"GGUF {name}": lambda folder, name=name: _gguf(folder, name) for name in GGUF_TYPES}
    made |= {name: lambda folder, name=name: _rounded(name) for name in ROUNDED}
    made |= {name: lambda folder, name=name: _packed(folder, *FORMATS[name]) for name in CHECKPOINTS}
    return made | {f"{name}, int8 activations": lambda folder, name=name: _with_int8(folder, name) for name in WITH_INT8}


@cache
def original() -> Tensors:
    """The packaged file's numbers."""
    checkpoint, ops = GGUFCheckpoint(smollm2_gguf()), NumpyOps()
    return {name: checkpoint.read(name, np.dtype(np.float32), ops) for name in checkpoint.shapes()}


def hugging_face_config() -> dict[str, Any]:
    """config.json's content."""
    return GGUFCheckpoint(smollm2_gguf()).hf_config | {"dtype": "bfloat16", "hidden_act": "silu"}


def _plain() -> Form:
    return Form(smollm2_directory("bfloat16"), _as_bfloat16(original()))


def _as_bfloat16(tensors: Tensors) -> Tensors:
    return {name: tensor.astype(ml_dtypes.bfloat16).astype(np.float32) for name, tensor in tensors.items()}


def _rounded(name: str) -> Form:
    """While loading: every matrix, and the embedding as the head that it also is."""
    options, quantization = ROUNDED[name]
    method = "fp8" if quantization.is_float else f"int{quantization.bits}"
    tensors = _as_bfloat16(original())
    for each, matrix in tensors.items():
        if matrix.ndim == 2:
            how = quantization.of_head if "embed_tokens" in each else quantization
            tensors[each] = np.ascontiguousarray(round_weight(matrix, how))
    options = {"quantization": method, **options}
    return Form(smollm2_directory("bfloat16"), tensors, options, quantization.activation_bits == 8)


def _packed(folder: Path, config: dict[str, Any], pack: Pack) -> Form:
    written = write_quantized(folder, config, pack, config=hugging_face_config(), tensors=original())
    return Form(folder, written.plain)


def _with_int8(folder: Path, name: str) -> Form:
    plain = _packed(folder, *FORMATS[name])
    return replace(plain, options={"quantization_activations": "int8"}, has_8_bit_activations=True)


def _gguf(folder: Path, type_name: str) -> Form:
    """Every matrix of the type, or of Q8_0 where its rows do not fill the blocks of 256 that K types have: 576 do not, the
    1,536 inputs of a down projection do."""
    stored: dict[str, Stored] = {}
    for tensor in gguf.GGUFReader(smollm2_gguf()).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        stored[tensor.name] = _blocks(values, type_name) if values.ndim == 2 else (values, "F32")
    metadata = GGUFCheckpoint(smollm2_gguf()).metadata
    left_out = dict.fromkeys(("general.architecture", *(key for key in metadata if key.startswith("GGUF."))))
    return Form(write_gguf(folder / f"{type_name}.gguf", stored, metadata | left_out), None)


def _blocks(matrix: Array, type_name: str) -> Stored:
    if type_name.endswith("_K") and matrix.shape[1] % BLOCK == 0:
        return round_to_k(matrix, type_name)
    kind = "Q8_0" if type_name.endswith("_K") else type_name
    return gguf.quants.quantize(matrix, gguf.GGMLQuantizationType[kind]), kind
