"""Writes quantized checkpoints in their published layouts, word by word, beside the numbers that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.weights.quantized.source import StoredTensors
from tests.models.tiny import tiny_checkpoint, tiny_config

Array = NDArray[Any]
Tensors = dict[str, Array]
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FLOAT8: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)
TYPE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "int32": "I32", "int64": "I64"}
TYPE_NAMES |= {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "uint8": "U8"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Rounded:
    """A matrix [out, in] as whole numbers: codes and zeros from 0 on, scales as they are stored, and `values`, what all of
    that stands for."""

    codes: Array
    zeros: Array  # [out, groups]
    scales: Array  # [out, groups]
    values: NDArray[np.float32]


def round_matrix(
    matrix: Array, bits: int, group: int, *, symmetric: bool, scale: Any = np.float16, index: Array | None = None
) -> Rounded:
    """To nearest. `group` -1: one for all inputs. `index` [in]: the group of each input."""
    outputs, inputs = matrix.shape
    size = inputs if group == -1 else group
    index = np.arange(inputs) // size if index is None else index
    most = 2**bits - 1
    scales = np.empty((outputs, index.max() + 1), scale)
    zeros = np.empty(scales.shape, np.int64)
    codes = np.empty(matrix.shape, np.int64)
    values = np.empty(matrix.shape, np.float32)
    for g in range(scales.shape[1]):
        part = matrix[:, index == g].astype(np.float64)
        if symmetric:
            step, zero = np.abs(part).max(axis=1) / (most // 2), np.full(outputs, (most + 1) // 2)
        else:
            step = (part.max(axis=1) - part.min(axis=1)) / (most - 1)
            zero = np.clip(np.rint(-part.min(axis=1) / step), 1, most)
        scales[:, g], zeros[:, g] = step.astype(scale), zero
        exact = scales[:, g].astype(np.float64)[:, None]
        q = np.clip(np.rint(part / exact) + zeros[:, g, None], 0, most)
        codes[:, index == g] = q
        values[:, index == g] = ((q - zeros[:, g, None]) * exact).astype(np.float32)
    return Rounded(codes, zeros, scales, values)


def words_of(codes: Array, bits: int) -> Array:
    """[n, rows] -> [rows of 32 bits, rows]: the codes of each column from top to bottom, the lowest bits first."""
    per_word = 32 // bits
    padded = np.pad(codes, ((0, -len(codes) % per_word), (0, 0))).astype(np.int64)
    words = sum(padded[place::per_word] << (bits * place) for place in range(per_word))
    return np.asarray(words).astype(np.uint32).view(np.int32)


def gptq(name: str, rounded: Rounded, bits: int, *, first_version: bool, index: Array | None = None) -> Tensors:
    """auto-gptq's and gptqmodel's layout."""
    tensors = {
        f"{name}.qweight": words_of(rounded.codes.T, bits),
        f"{name}.qzeros": words_of(rounded.zeros - first_version, bits).T.copy(),
        f"{name}.scales": rounded.scales.T.copy(),
    }
    return tensors if index is None else {**tensors, f"{name}.g_idx": index.astype(np.int32)}


def awq(name: str, rounded: Rounded) -> Tensors:
    """AutoAWQ's GEMM layout."""

    def words(codes: Array) -> Array:
        by_word = codes.T.reshape(codes.shape[1], -1, 8).astype(np.int64)  # [in, words, 8 outputs]
        total = sum(by_word[:, :, output] << (4 * place) for place, output in enumerate(AWQ_ORDER))
        return np.asarray(total).astype(np.uint32).view(np.int32)

    return {
        f"{name}.qweight": words(rounded.codes),
        f"{name}.qzeros": words(rounded.zeros),
        f"{name}.scales": rounded.scales.T.copy(),
    }


def packed_words(name: str, rounded: Rounded, bits: int, *, symmetric: bool, index: Array | None = None) -> Tensors:
    """compressed-tensors' pack-quantized."""
    tensors = {
        f"{name}.weight_packed": words_of(rounded.codes.T, bits).T.copy(),
        f"{name}.weight_scale": rounded.scales,
        f"{name}.weight_shape": np.array(rounded.codes.shape, np.int64),
    }
    if not symmetric:
        tensors[f"{name}.weight_zero_point"] = words_of(rounded.zeros, bits)
    return tensors if index is None else {**tensors, f"{name}.weight_g_idx": index.astype(np.int32)}


def plain_integers(name: str, rounded: Rounded, *, symmetric: bool) -> Tensors:
    """compressed-tensors' int-quantized, 8 bits."""
    tensors = {f"{name}.weight": (rounded.codes - 128).astype(np.int8), f"{name}.weight_scale": rounded.scales}
    return tensors if symmetric else {**tensors, f"{name}.weight_zero_point": (rounded.zeros - 128).astype(np.int8)}


def float8(
    name: str, matrix: Array, block: tuple[int, int], scale: Any, scale_name: str = "weight_scale"
) -> tuple[Tensors, NDArray[np.float32]]:
    """E4M3 with a scale for each block of outputs and inputs; (0, 0): one for all; and what they stand for."""
    rows, columns = block if block != (0, 0) else matrix.shape
    columns = columns or matrix.shape[1]
    shape = -(-matrix.shape[0] // rows), -(-matrix.shape[1] // columns)
    scales, codes = np.empty(shape, scale), np.empty(matrix.shape, FLOAT8)
    values = np.empty(matrix.shape, np.float32)
    for i in range(shape[0]):
        for j in range(shape[1]):
            part = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scales[i, j] = np.abs(matrix[part]).max() / 440
            codes[part] = (matrix[part] / np.float32(scales[i, j])).astype(FLOAT8)
            values[part] = codes[part].astype(np.float32) * np.float32(scales[i, j])
    return {f"{name}.weight": codes, f"{name}.{scale_name}": scales.reshape(1) if block == (0, 0) else scales}, values


def unpacked(source: StoredTensors, name: str) -> NDArray[np.float32]:
    """A projection as its format's description has it, by shifts of whole words; of checkpoints with 4 or 8 bits."""
    stored = {
        tensor.removeprefix(f"{name}."): source.stored(tensor) for tensor in source.shapes() if tensor.startswith(name)
    }
    config = json.loads((source.path / "config.json").read_text())["quantization_config"]
    if "weight" in stored and stored["weight"].dtype == np.uint8:
        return _expand(stored["weight"].view(FLOAT8).astype(np.float32), stored["weight_scale"])
    if "weight" in stored:
        return _expand(stored["weight"].astype(np.float32), stored["weight_scale"])
    if "weight_packed" in stored:
        bits = next(iter(config["config_groups"].values()))["weights"]["num_bits"]
        codes = _shifted(stored["weight_packed"], bits, axis=1)
        zeros = np.full((len(codes), stored["weight_scale"].shape[1]), 2 ** (bits - 1))
        if "weight_zero_point" in stored:
            zeros = _shifted(stored["weight_zero_point"], bits, axis=0)
        index = np.arange(codes.shape[1]) * zeros.shape[1] // codes.shape[1]
        return _values(codes, zeros, stored["weight_scale"], index)
    codes, zeros = (_shifted(stored[key], 4, axis=axis) for key, axis in (("qweight", 0), ("qzeros", 1)))
    if config["quant_method"] == "awq":
        codes, zeros = (_shifted(stored[key], 4, axis=1) for key in ("qweight", "qzeros"))
        order = np.argsort(AWQ_ORDER)
        codes, zeros = (each.reshape(len(each), -1, 8)[:, :, order].reshape(each.shape) for each in (codes, zeros))
    elif config.get("checkpoint_format", "gptq") == "gptq":
        zeros = zeros + 1
    index = stored.get("g_idx", np.arange(len(codes)) * len(zeros) // len(codes))
    return _values(codes.T, zeros.T, stored["scales"].T, index)


def _shifted(words: Array, bits: int, axis: int) -> Array:
    parts = [words.view(np.uint32).astype(np.int64) >> shift & (2**bits - 1) for shift in range(0, 32, bits)]
    shape = list(words.shape)
    shape[axis] *= 32 // bits
    return np.stack(parts, axis + 1).reshape(shape)


def _values(codes: Array, zeros: Array, scales: Array, index: Array) -> NDArray[np.float32]:
    exact = (codes - zeros[:, index]).astype(np.float64) * scales.astype(np.float64)[:, index]
    return exact.astype(np.float32)


def _expand(values: NDArray[np.float32], scales: Array) -> NDArray[np.float32]:
    wide = scales.astype(np.float32).reshape(-1, scales.shape[-1] if scales.ndim == 2 else 1)
    rows, columns = -(-values.shape[0] // wide.shape[0]), -(-values.shape[1] // wide.shape[1])
    if (scales.ndim == 2 and scales.shape[1] > 1) or wide.shape[0] not in (1, values.shape[0]):
        rows, columns = 128, 128
    spread = np.repeat(np.repeat(wide, rows, 0), columns, 1)[: values.shape[0], : values.shape[1]]
    return values * spread


def write_safetensors(file: Path, tensors: Mapping[str, Array]) -> None:
    """Of any dtypes."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        span = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": TYPE_NAMES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": span}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensor.tobytes() for tensor in tensors.values()))


Pack = Callable[[str, Array], tuple[Tensors, NDArray[np.float32]]]


@dataclass(frozen=True)
class Written:
    """A quantized directory, the same model in float32 with the numbers that its codes stand for, and these numbers."""

    path: Path
    config: dict[str, Any]
    plain: Tensors
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)


MODEL = tiny_config(hidden_size=128, intermediate_size=256, head_dim=32)


def write_quantized(
    folder: Path,
    quantization_config: dict[str, Any] | None,
    pack: Pack,
    *,
    left_out: tuple[str, ...] = ("lm_head", "embed_tokens"),
    config: dict[str, Any] | None = None,
    tensors: Tensors | None = None,
) -> Written:
    """A tiny Llama, or another model with its `tensors`, of which every projection whose name ends in nothing that is
    `left_out` is packed."""
    config = dict(config or MODEL)
    plain = tiny_checkpoint(config).tensors if tensors is None else dict(tensors)
    stored, values = dict(plain), {}
    for tensor in list(plain):
        name = tensor.removesuffix(".weight")
        if plain[tensor].ndim != 2 or name.endswith(left_out):
            continue
        del stored[tensor]
        packed, values[name] = pack(name, plain[tensor])
        stored |= packed
    for tensor, value in stored.items():
        if value.dtype == np.float32 and tensor in plain:
            stored[tensor] = value.astype(BFLOAT16)
            plain[tensor] = stored[tensor].astype(np.float32)
    folder.mkdir(exist_ok=True)
    if quantization_config is not None:
        config["quantization_config"] = quantization_config
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", stored)
    plain |= {f"{name}.weight": value for name, value in values.items()}
    return Written(folder, config, plain, values)
