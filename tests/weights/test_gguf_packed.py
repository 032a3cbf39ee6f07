"""GGUF's block types that stay packed: number by number, as models, and in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.engine.planning import plan_model
from octavo.errors import ConfigError
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Quantization
from octavo.kernels.packed import PackedTensor
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.models.sizes import weights_bytes
from octavo.weights.checkpoint import Weights
from octavo.weights.gguf_blocks import gguf_packing, unpack_blocks
from octavo.weights.loader import open_checkpoint
from tests.models.driver import logits_of
from tests.weights.gguf_files import HIDDEN, SHAPES, Stored, random_tensor, random_tensors, values, write_gguf

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
# Of a number, in memory.
BITS = {
    **{"Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0, "Q8_0": 8.5},
    **{"Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.5625},
}
K_SCALES = {"Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 5e-5}  # of blocks whose numbers are about as large as a model's
IDS = list(range(3, 60, 4))


def rounded(type_name: str, seed: int = 0) -> dict[str, Stored]:
    """Matrices of a model's size, rounded by the gguf library or (K types) random blocks; norms of about 1, which bfloat16
    has."""
    random = np.random.default_rng(seed)
    tensors: dict[str, Stored] = {}
    for name, shape in SHAPES.items():
        matrix = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            tensors[name] = (1 + matrix / 8).astype(BFLOAT16).astype(FLOAT32), "F32"
        elif type_name in K_SCALES:
            tensors[name] = random_tensor(shape, type_name, seed + len(tensors), K_SCALES[type_name])
        else:
            small = matrix / np.float32(np.sqrt(shape[1]))
            tensors[name] = gguf.quants.quantize(small, gguf.GGMLQuantizationType[type_name]), type_name
    return tensors


def unrounded(tensors: dict[str, Stored]) -> dict[str, Stored]:
    """The same numbers in float32."""
    return {name: (values(stored), "F32") for name, stored in tensors.items()}


def logits(path: Path, ops: CpuOps, dtype: np.dtype = BFLOAT16) -> np.ndarray:
    checkpoint = open_checkpoint(path)
    weights = Weights(checkpoint, dtype, ops)
    return logits_of(build_model(read_model_config(checkpoint), weights, ops), ops, IDS, chunk=5)


@pytest.mark.parametrize("type_name", BITS)
def test_codes_stand_for_what_the_library_makes_of_them(type_name: str) -> None:
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][0]
    for seed, shape in enumerate(((1, block), (33, 3 * block), (300, 1024))):
        stored = random_tensor(shape, type_name, seed)
        packed = unpack_blocks(stored[0], type_name)
        np.testing.assert_array_equal(packed.dequantized(), values(stored))
        assert packed.packing == gguf_packing(type_name)
        reversed_rows = packed.changed(lambda rows: rows[::-1]).dequantized()
        np.testing.assert_array_equal(reversed_rows, values(stored)[::-1])


@pytest.mark.parametrize("type_name", BITS)
def test_projections_are_the_tensors_that_are_read(tmp_path: Path, type_name: str) -> None:
    """In Hugging Face's order of the rows of q and k too; embeddings are looked up from the codes themselves."""
    checkpoint, ops = open_checkpoint(write_gguf(tmp_path / "m.gguf", rounded(type_name))), CpuOps()
    matrices = [name.removesuffix(".weight") for name, shape in checkpoint.shapes().items() if len(shape) == 2]
    assert len(matrices) == 8
    for name in matrices:
        projection = checkpoint.projection(name)
        assert projection is not None
        packed, expected = projection.read(), checkpoint.read(f"{name}.weight", FLOAT32, ops)
        assert projection.shape == expected.shape
        np.testing.assert_array_equal(packed.dequantized(), expected)
        ids = np.array([0, len(expected) - 1, 5], np.int32)
        np.testing.assert_array_equal(ops.embedding(ids, ops.linear_weight([packed])), expected[ids])


@pytest.mark.parametrize("type_name", BITS)
def test_a_packed_model_says_what_the_unpacked_one_says(tmp_path: Path, type_name: str) -> None:
    tensors, ops = rounded(type_name), CpuOps()
    found = logits(write_gguf(tmp_path / "m.gguf", tensors), ops)
    expected = logits(write_gguf(tmp_path / "n.gguf", unrounded(tensors)), ops, FLOAT32)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("base", ["Q4_K", "Q5_K"])
def test_the_mixture_that_is_published_as_k_m(tmp_path: Path, base: str) -> None:
    """Half of the values and of the last matrices, and the embedding that is the head too, are Q6_K."""
    tensors, ops, finer = rounded(base), CpuOps(), rounded("Q6_K")
    names = ("token_embd.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight")
    tensors |= {name: finer[name] for name in names}
    path = write_gguf(tmp_path / "m.gguf", tensors)
    expected = logits(write_gguf(tmp_path / "n.gguf", unrounded(tensors)), ops, FLOAT32)
    assert np.abs(logits(path, ops) - expected).max() < 1e-3 * np.abs(expected).max()
    checkpoint = open_checkpoint(path)
    planned = weights_bytes(read_model_config(checkpoint), checkpoint, BFLOAT16, ops)
    bits = sum(BITS["Q6_K" if name in names else base] * np.prod(SHAPES[name]) for name in SHAPES if len(SHAPES[name]) == 2)
    assert bits / 8 <= planned < bits / 8 * 1.02


@pytest.mark.parametrize("changed", ["attn_v", "attn_k", "ffn_up", "ffn_down"])
@pytest.mark.parametrize("type_name", ["Q8_0", "Q5_1", "Q3_K", "Q6_K", "F16"])
def test_tensors_of_one_product_may_be_of_several_types(tmp_path: Path, changed: str, type_name: str) -> None:
    tensors, ops, name = rounded("Q4_0"), CpuOps(), f"blk.0.{changed}.weight"
    if type_name == "Q3_K":
        tensors[name] = random_tensor(SHAPES[name], type_name, scale=1e-3)
    elif type_name == "F16":
        tensors[name] = values(tensors[name]).astype(np.float16), type_name
    else:
        tensors[name] = rounded(type_name)[name]
    found = logits(write_gguf(tmp_path / "m.gguf", tensors), ops)
    expected = logits(write_gguf(tmp_path / "n.gguf", unrounded(tensors)), ops, FLOAT32)
    assert np.abs(found - expected).max() < 1e-2 * np.abs(expected).max()


def test_a_gelu_gate_and_up_of_two_types_are_unpacked(tmp_path: Path) -> None:
    """Halves of two formats have no such product."""
    tensors = rounded("Q4_0") | {"blk.0.ffn_up.weight": rounded("Q8_0")["blk.0.ffn_up.weight"]}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors))
    checkpoint.hf_config["model_type"] = "gemma"
    assert checkpoint.projection("model.layers.0.mlp.gate_proj") is None
    assert checkpoint.projection("model.layers.0.mlp.up_proj") is None
    assert checkpoint.projection("model.layers.0.mlp.down_proj") is not None
    checkpoint.hf_config["model_type"] = "llama"
    assert checkpoint.projection("model.layers.0.mlp.gate_proj") is not None


@pytest.mark.parametrize("type_name", BITS)
def test_a_matrix_takes_the_bits_of_its_codes_and_scales(tmp_path: Path, type_name: str) -> None:
    """What is planned, and what the backend takes, a tied embedding once."""
    checkpoint, ops = open_checkpoint(write_gguf(tmp_path / "m.gguf", rounded(type_name))), CpuOps(1)
    planned = weights_bytes(read_model_config(checkpoint), checkpoint, BFLOAT16, ops)
    numbers = sum(int(np.prod(shape)) for shape in SHAPES.values() if len(shape) == 2)
    assert BITS[type_name] / 8 * numbers <= planned < (BITS[type_name] + 0.1) / 8 * numbers
    projection = checkpoint.projection("model.layers.0.self_attn.o_proj")
    assert projection is not None
    weight = ops.linear_weight([projection.read()])
    assert BITS[type_name] / 8 * HIDDEN * HIDDEN <= weight.nbytes < (BITS[type_name] + 0.1) / 8 * HIDDEN * HIDDEN


def test_a_given_quantization_rounds_what_the_file_has_packed(tmp_path: Path) -> None:
    checkpoint, ops = open_checkpoint(write_gguf(tmp_path / "m.gguf", rounded("Q4_0"))), CpuOps()
    taken, _ = Weights(checkpoint, BFLOAT16, ops).take_projection("model.layers.0.mlp.down_proj", (256, 512))
    assert isinstance(taken, PackedTensor)
    weights = Weights(checkpoint, BFLOAT16, ops, quantization=Quantization(8))
    unpacked, _ = weights.take_projection("model.layers.0.mlp.down_proj", (256, 512))
    assert isinstance(unpacked, np.ndarray)
    assert unpacked.dtype == BFLOAT16


def test_the_table_at_the_start_says_what_stays_packed(smollm2: Path) -> None:
    rows = plan_model(EngineConfig(model=str(smollm2), backend="cpu"), smollm2).table()
    stored = "bfloat16, weights as they are stored: int4 in groups of 32 and int8 in groups of 32"
    assert rows["dtype"] == f"{stored} (activations int16)"
    coarse = EngineConfig(model=str(smollm2), backend="cpu", quantization_activations="int8")
    assert plan_model(coarse, smollm2).table()["dtype"] == f"{stored} (activations int8)"
    rounded_rows = plan_model(EngineConfig(model=str(smollm2), backend="cpu", quantization="int8"), smollm2).table()
    assert "as they are stored" not in rounded_rows["dtype"]


def test_activations_are_not_rounded_beside_weights_that_are_no_integers(smollm2: Path) -> None:
    config = EngineConfig(model=str(smollm2), backend="cpu", dtype="float32", quantization_activations="int8")
    with pytest.raises(
        ConfigError, match=r"--quantization-activations has no meaning here: .* in float32; --quantization int8"
    ):
        plan_model(config, smollm2)
    rows = plan_model(replace(config, quantization="int8"), smollm2).table()
    assert rows["dtype"] == "float32, weights int8 (activations int8)"


@pytest.mark.parametrize("type_name", ["Q2_K", "Q3_K"])
def test_types_of_two_and_three_bits_are_unpacked(tmp_path: Path, type_name: str) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", random_tensors(type_name)))
    assert checkpoint.projection("model.layers.0.mlp.down_proj") is None
    assert gguf_packing("F16") is None


def test_float32_weights_are_unpacked(tmp_path: Path, smollm2: Path) -> None:
    """Beside packed ones activations have 16 bits, which float32 is not."""
    checkpoint, ops = open_checkpoint(write_gguf(tmp_path / "m.gguf", rounded("Q4_K"))), CpuOps()
    taken, _ = Weights(checkpoint, FLOAT32, ops).take_projection("model.layers.0.mlp.down_proj", (256, 512))
    assert isinstance(taken, np.ndarray)
    assert taken.dtype == FLOAT32
    rows = plan_model(EngineConfig(model=str(smollm2), backend="cpu", dtype="float32"), smollm2).table()
    assert rows["dtype"] == "float32"
