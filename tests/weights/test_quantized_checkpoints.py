"""Quantized checkpoints: each layout read as it was written, number by number, and run without unpacking it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import LoadError
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint, weights_dtype
from octavo.weights.safetensors import SafetensorsCheckpoint
from tests.models.driver import logits_of
from tests.models.tiny import TinyCheckpoint, tiny_checkpoint, tiny_config
from tests.weights.quantized_files import (
    BFLOAT16,
    FLOAT8,
    MODEL,
    Array,
    Pack,
    Tensors,
    Written,
    awq,
    float8,
    gptq,
    packed_words,
    plain_integers,
    round_matrix,
    unpacked,
    write_quantized,
    write_safetensors,
)

IDS = list(range(3, 150, 7))


def gptq_pack(
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = True,
    first: bool = True,
    ordered: bool = False,
    bias: bool = False,
    by_name: Callable[[str], int] = lambda name: 0,
) -> Pack:
    """`by_name`: bits of single modules, 0: `bits`; -1: the module stays as it is."""

    def pack(name: str, matrix: Array) -> tuple[Tensors, Array]:
        own = by_name(name) or bits
        if own == -1:
            return {f"{name}.weight": matrix.astype(BFLOAT16)}, matrix.astype(BFLOAT16).astype(np.float32)
        index = np.arange(matrix.shape[1]) // (group if group > 0 else matrix.shape[1])
        if ordered:  # of the layer's input, as the projections of one input share it
            index = np.random.default_rng(len(index)).permutation(index)
        rounded = round_matrix(matrix, own, group, symmetric=symmetric, index=index)
        tensors = gptq(name, rounded, own, first_version=first, index=index)
        if bias:
            tensors[f"{name}.bias"] = np.linspace(-1, 1, len(matrix)).astype(np.float16)
        return tensors, rounded.values

    return pack


def gptq_config(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True} | changes


def awq_pack(group: int, *, symmetric: bool = False) -> Pack:
    def pack(name: str, matrix: Array) -> tuple[Tensors, Array]:
        rounded = round_matrix(matrix, 4, group, symmetric=symmetric)
        return awq(name, rounded), rounded.values

    return pack


def awq_config(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"} | changes


def compressed_config(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "int", "symmetric": True} | weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    } | changes


def words_pack(bits: int, group: int, *, symmetric: bool = True, ordered: bool = False) -> Pack:
    def pack(name: str, matrix: Array) -> tuple[Tensors, Array]:
        index = None
        if ordered:
            index = np.random.default_rng(matrix.shape[1]).permutation(np.arange(matrix.shape[1]) // group)
        rounded = round_matrix(matrix, bits, group, symmetric=symmetric, scale=BFLOAT16, index=index)
        return packed_words(name, rounded, bits, symmetric=symmetric, index=index), rounded.values

    return pack


def integers_pack(*, symmetric: bool = True) -> Pack:
    def pack(name: str, matrix: Array) -> tuple[Tensors, Array]:
        rounded = round_matrix(matrix, 8, -1, symmetric=symmetric, scale=BFLOAT16)
        return plain_integers(name, rounded, symmetric=symmetric), rounded.values

    return pack


def float8_pack(block: tuple[int, int], scale: Any, scale_name: str = "weight_scale", *, static: bool = False) -> Pack:
    def pack(name: str, matrix: Array) -> tuple[Tensors, Array]:
        tensors, values = float8(name, matrix, block, scale, scale_name)
        return tensors | ({f"{name}.input_scale": np.ones(1, np.float32)} if static else {}), values

    return pack


INT8_INPUTS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
FLOAT_INPUTS = INT8_INPUTS | {"type": "float"}
FLOAT_WEIGHTS = {"num_bits": 8, "type": "float"}
FORMATS: dict[str, tuple[dict[str, Any], Pack]] = {
    "awq-32": (awq_config(), awq_pack(32)),
    "awq-128": (awq_config(group_size=128), awq_pack(128)),
    "awq-symmetric": (awq_config(zero_point=False), awq_pack(32, symmetric=True)),
    "gptq-32": (gptq_config(), gptq_pack()),
    "gptq-128": (gptq_config(group_size=128), gptq_pack(group=128)),
    "gptq-column": (gptq_config(group_size=-1), gptq_pack(group=-1)),
    "gptq-8": (gptq_config(bits=8), gptq_pack(8)),
    "gptq-desc_act": (gptq_config(desc_act=True), gptq_pack(ordered=True)),
    "gptq-8-desc_act-asym": (
        gptq_config(bits=8, group_size=64, desc_act=True),
        gptq_pack(8, 64, symmetric=False, ordered=True),
    ),
    "w4a16-32": (compressed_config({"num_bits": 4, "strategy": "group", "group_size": 32}), words_pack(4, 32)),
    "w4a16-channel": (compressed_config({"num_bits": 4, "strategy": "channel"}), words_pack(4, -1)),
    "w4a16-asym": (
        compressed_config({"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False}),
        words_pack(4, 64, symmetric=False),
    ),
    "w4a16-actorder": (
        compressed_config({"num_bits": 4, "strategy": "group", "group_size": 32, "actorder": "group"}),
        words_pack(4, 32, ordered=True),
    ),
    "w8a16-channel": (compressed_config({"num_bits": 8, "strategy": "channel"}), words_pack(8, -1)),
    "w8a16-128": (compressed_config({"num_bits": 8, "strategy": "group", "group_size": 128}), words_pack(8, 128)),
    "w8a16-asym": (
        compressed_config({"num_bits": 8, "strategy": "channel", "symmetric": False}),
        words_pack(8, -1, symmetric=False),
    ),
    "w8a8": (
        compressed_config({"num_bits": 8, "strategy": "channel"}, INT8_INPUTS, format="int-quantized"),
        integers_pack(),
    ),
    "w8a8-asym": (
        compressed_config({"num_bits": 8, "strategy": "channel", "symmetric": False}, INT8_INPUTS, format="int-quantized"),
        integers_pack(symmetric=False),
    ),
    "fp8-tensor": (
        compressed_config(FLOAT_WEIGHTS | {"strategy": "tensor"}, FLOAT_INPUTS, format="float-quantized"),
        float8_pack((0, 0), BFLOAT16, static=True),
    ),
    "fp8-channel": (
        compressed_config(FLOAT_WEIGHTS | {"strategy": "channel"}, FLOAT_INPUTS, format="float-quantized"),
        float8_pack((1, 0), BFLOAT16),
    ),
    "fp8-block": (
        compressed_config(
            FLOAT_WEIGHTS | {"strategy": "block", "block_structure": [128, 128]}, FLOAT_INPUTS, format="float-quantized"
        ),
        float8_pack((128, 128), BFLOAT16),
    ),
    "fp8-deepseek": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
        float8_pack((128, 128), np.float32, "weight_scale_inv"),
    ),
    "fp8-small-blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 64]},
        float8_pack((32, 64), np.float32, "weight_scale_inv"),
    ),
    "fp8-static": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        float8_pack((0, 0), np.float32, static=True),
    ),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8"}, float8_pack((1, 0), np.float32)),
}
each_format = pytest.mark.parametrize("name", FORMATS)


def opened(written: Written) -> SafetensorsCheckpoint:
    checkpoint = open_checkpoint(written.path)
    assert isinstance(checkpoint, SafetensorsCheckpoint)
    return checkpoint


def assert_numbers(written: Written) -> None:
    """Every projection stands for exactly what was written."""
    checkpoint = opened(written)
    for name, values in written.values.items():
        stored = checkpoint.projection(name)
        assert stored is not None, name
        packed = stored.read()
        assert stored.shape == packed.shape == values.shape
        assert packed.packing == stored.packing
        np.testing.assert_array_equal(packed.dequantized(), values, name)


def logits(checkpoint: Any, ops: Any, activation_bits: int = 16) -> Array:
    config = read_model_config(checkpoint)
    weights = Weights(checkpoint, weights_dtype("auto", config.dtype), ops, activation_bits=activation_bits)
    return logits_of(build_model(config, weights, ops), ops, IDS, len(IDS))


def assert_logits(written: Written, most: float = 1e-2) -> None:
    """Those of the same model in float32 with the numbers that the codes stand for."""
    ours = logits(opened(written), CpuOps())
    expected = logits(TinyCheckpoint(written.config, written.plain), NumpyOps())
    assert np.linalg.norm(ours - expected) <= most * np.linalg.norm(expected)


@each_format
def test_numbers_are_those_that_were_written(tmp_path: Path, name: str) -> None:
    assert_numbers(write_quantized(tmp_path, *FORMATS[name]))


@each_format
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, name: str) -> None:
    assert_logits(write_quantized(tmp_path, *FORMATS[name]))


@pytest.mark.parametrize("name", ["gptq-32", "w8a8"])
def test_activations_of_8_bits_are_an_option(tmp_path: Path, name: str) -> None:
    checkpoint = opened(write_quantized(tmp_path, *FORMATS[name]))
    exact, coarse = (logits(checkpoint, CpuOps(), bits) for bits in (16, 8))
    difference = float(np.linalg.norm(coarse - exact) / np.linalg.norm(exact))
    assert 1e-3 < difference < 5e-2
    assert np.allclose(coarse, logits(checkpoint, NumpyOps(), 8), atol=1e-2 * np.abs(exact).max())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_c155_zeros_of_both_versions(tmp_path: Path, form: str, symmetric: bool, bits: int) -> None:
    config = gptq_config(bits=bits, sym=symmetric, checkpoint_format=form)
    written = write_quantized(tmp_path, config, gptq_pack(bits, symmetric=symmetric, first=form == "gptq"))
    assert_numbers(written)
    assert_logits(written)


def test_c155_a_zero_of_0_borrows_from_the_next(tmp_path: Path) -> None:
    """Version 1 as gptqmodel converts to it: 1 is taken off whole words."""
    written = write_quantized(tmp_path, gptq_config(checkpoint_format="gptq_v2"), gptq_pack(symmetric=False, first=False))
    checkpoint = opened(written)
    name = "model.layers.0.mlp.up_proj"
    tensors = {each: np.array(checkpoint.stored(each)) for each in checkpoint.shapes()}
    tensors[f"{name}.qzeros"] = (tensors[f"{name}.qzeros"].view(np.uint32) & np.uint32(0xFFFF0FF0)).view(np.int32)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    second = opened(written).projection(name)
    assert second is not None
    expected = second.read().dequantized()
    tensors[f"{name}.qzeros"] = (tensors[f"{name}.qzeros"].view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {"quantization_config": gptq_config()}))
    first = opened(written).projection(name)
    assert first is not None
    np.testing.assert_array_equal(first.read().dequantized(), expected)


def test_c157_biases_and_dynamic_rules(tmp_path: Path) -> None:
    rules = {r"+:.*\.down_proj": {"bits": 8}, r"-:.*layers\.1\.self_attn.*": {}, r".*layers\.0\.self_attn.*": {"bits": 8}}

    def bits(name: str) -> int:
        return -1 if "layers.1.self_attn" in name else 8 if "down_proj" in name or "layers.0.self_attn" in name else 4

    written = write_quantized(tmp_path, gptq_config(dynamic=rules), gptq_pack(by_name=bits, bias=True))
    for name in written.values:
        if bits(name) != -1:
            written.plain[f"{name}.bias"] = np.linspace(-1, 1, len(written.values[name])).astype(np.float16)
    kept = {name: values for name, values in written.values.items() if bits(name) != -1}
    assert_numbers(replace(written, values=kept))
    ours = logits(opened(written), CpuOps())
    for name in written.values:
        written.plain.setdefault(f"{name}.bias", np.zeros(len(written.values[name]), np.float32))
    config = written.config | {"attention_bias": True, "mlp_bias": True}
    expected = logits(TinyCheckpoint(config, written.plain), NumpyOps())
    assert np.abs(ours - expected).max() <= 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({".*": {"bits": 3}}, "3 bits is not supported; supported: 4 and 8 bits"),
        ({".*": {"rotation": "hadamard"}}, "'rotation' in the dynamic rule '.*' is not supported"),
        ({"(": {"bits": 8}}, r"dynamic rule '\(' is no expression"),
        ({"-:.*": {}}, "a dynamic rule leaves model.layers.0.self_attn.q_proj out, but it is stored quantized"),
    ],
)
def test_c157_unknown_rules_are_refused(tmp_path: Path, rules: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        logits(opened(write_quantized(tmp_path, gptq_config(dynamic=rules), gptq_pack())), NumpyOps())


def test_c158_awq_modules_that_are_left_out(tmp_path: Path) -> None:
    config = awq_config(modules_to_not_convert=["lm_head", "q_proj"])
    written = write_quantized(tmp_path, config, awq_pack(32), left_out=("lm_head", "embed_tokens", "q_proj"))
    assert opened(written).projection("model.layers.0.self_attn.q_proj") is None
    assert_numbers(written)
    assert_logits(written)


def test_c158_awq_without_groups(tmp_path: Path) -> None:
    written = write_quantized(tmp_path, awq_config(group_size=-1), awq_pack(-1))
    assert_numbers(written)
    assert_logits(written)


def test_c158_a_configuration_inside_text_config(tmp_path: Path) -> None:
    written = write_quantized(
        tmp_path, None, awq_pack(32), config=MODEL | {"text_config": {"quantization_config": awq_config()}}
    )
    assert opened(written).quantization_method == "awq"
    assert_numbers(written)
    assert_logits(written)


@pytest.mark.parametrize(
    ("file", "config", "pack"),
    [
        ("quantize_config.json", {"bits": 8, "group_size": 32, "desc_act": False}, gptq_pack(8)),
        ("quant_config.json", {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}, awq_pack(32)),
    ],
)
def test_older_tools_wrote_a_file_of_their_own(tmp_path: Path, file: str, config: dict[str, Any], pack: Pack) -> None:
    written = write_quantized(tmp_path / "model", None, pack)
    with pytest.raises(LoadError, match="but no quantization_config in config"):
        open_checkpoint(written.path)
    (written.path / file).write_text(json.dumps(config))
    assert_numbers(written)


def test_targets_and_ignore_lists_of_compressed_tensors(tmp_path: Path) -> None:
    """An expression goes before a class; what is ignored is stored as it was."""
    groups = {
        "all": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}},
        "down": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
    }
    config = compressed_config({}, config_groups=groups, ignore=["lm_head", "re:.*k_proj$", "model.layers.1.mlp.gate_proj"])

    def pack(name: str, matrix: Array) -> tuple[Tensors, Array]:
        return (words_pack(8, -1) if "down_proj" in name else words_pack(4, 32))(name, matrix)

    left_out = ("lm_head", "embed_tokens", "k_proj", "layers.1.mlp.gate_proj")
    written = write_quantized(tmp_path, config, pack, left_out=left_out)
    assert_numbers(written)
    assert_logits(written)


@pytest.mark.parametrize("name", ["awq-32", "gptq-desc_act", "w8a16-128", "fp8-deepseek"])
def test_experts_stay_packed(tmp_path: Path, name: str) -> None:
    """Mixtral's: each with projections of its own, and with desc_act an order of its own."""
    config = tiny_config(
        architectures=["MixtralForCausalLM"],
        hidden_size=128,
        intermediate_size=128,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    tensors = {each: tensor for each, tensor in tiny_checkpoint(config).tensors.items() if ".mlp." not in each}
    random = np.random.default_rng(0)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}.block_sparse_moe"
        shapes = {f"{block}.experts.{e}.w{w}.weight": (128, 128) for e in range(4) for w in (1, 2, 3)}
        for tensor, shape in {f"{block}.gate.weight": (4, 128), **shapes}.items():
            tensors[tensor] = (random.standard_normal(shape) * 0.15).astype(np.float32)
    left_out = ("lm_head", "embed_tokens", "block_sparse_moe.gate")
    quantization_config, pack = FORMATS[name]
    written = write_quantized(tmp_path, quantization_config, pack, left_out=left_out, config=config, tensors=tensors)
    assert_numbers(written)
    ours = logits(opened(written), CpuOps())
    expected = logits(TinyCheckpoint(written.config, written.plain), NumpyOps())
    errors = np.linalg.norm(ours - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(errors) <= 1e-2  # a small difference may make a token choose another expert


REFUSED: list[tuple[dict[str, Any], Pack, str]] = [
    ({"quant_method": "bitsandbytes"}, gptq_pack(), "quantized with 'bitsandbytes', which is not supported; supported: awq"),
    ({"bits": 4}, gptq_pack(), "quantized with None, which is not supported"),
    (gptq_config(bits=3), gptq_pack(), "gptq: 3 bits is not supported; supported: 4 and 8 bits"),
    (gptq_config(checkpoint_format="marlin"), gptq_pack(), "checkpoint_format 'marlin' is not supported"),
    (
        gptq_config(checkpoint_format="gptq_v2", format="gptq"),
        gptq_pack(),
        "checkpoint_format 'gptq_v2' beside format 'gptq'",
    ),
    (
        gptq_config(group_size=64),
        gptq_pack(),
        r"q_proj\.scales has a scale for each 32 inputs, but the quantization_config says group_size 64",
    ),
    (
        gptq_config(group_size=-1),
        gptq_pack(),
        "has a scale for each 32 inputs, but the quantization_config says group_size -1",
    ),
    (gptq_config(), gptq_pack(group=-1), "has a scale for each 128 inputs, but the quantization_config says group_size 32"),
    (gptq_config(dynamic={".*up_proj": {"group_size": 16}}), gptq_pack(), r"up_proj\.scales has .* says group_size 16"),
    (gptq_config(pack_dtype="int16"), gptq_pack(), "pack_dtype 'int16' is not supported"),
    (awq_config(version="gemv"), awq_pack(32), "awq: version 'gemv' is not supported; supported: gemm"),
    (awq_config(bits="4"), awq_pack(32), "bits of the quantization_config must be an integer, but is '4'"),
    (gptq_config(), gptq_pack(group=8), "16 groups of 128 inputs; supported: groups of a multiple of 16"),
    (
        compressed_config({"num_bits": 4, "type": "float"}, format="nvfp4-pack-quantized"),
        words_pack(4, 32),
        "format 'nvfp4-pack-quantized' is not supported",
    ),
    (compressed_config({"num_bits": 2}), words_pack(4, 32), "weights of type int with 2 bits is not supported"),
    (compressed_config({"num_bits": 4}, transform_config={"u": {}}), words_pack(4, 32), "a transform_config is not"),
    (
        compressed_config({"num_bits": 4}, ignore=["model.layers.0.self_attn.q_proj"]),
        words_pack(4, 32),
        r"q_proj is stored quantized, but the ignore list of its configuration has it",
    ),
    (compressed_config({"num_bits": 8}), float8_pack((1, 0), BFLOAT16), "is stored as E4M3, but its config_groups say int"),
    ({"quant_method": "fp8", "activation_scheme": "other"}, float8_pack((1, 0), np.float32), "activation_scheme 'other'"),
    ({"quant_method": "fp8"}, float8_pack((32, 64), np.float32), r"weight_scale has shape \[4, 2\], which says nothing"),
]


@pytest.mark.parametrize(("config", "pack", "words"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, config: dict[str, Any], pack: Pack, words: str) -> None:
    with pytest.raises(LoadError, match=words) as info:
        logits(opened(write_quantized(tmp_path, config, pack)), NumpyOps())
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "tensor"),
    [("awq-32", "scales"), ("gptq-32", "scales"), ("w8a8", "weight_scale"), ("fp8-deepseek", "weight_scale_inv")],
)
def test_scales_that_are_not_finite_are_refused_by_name(tmp_path: Path, name: str, tensor: str, value: float) -> None:
    checkpoint = opened(write_quantized(tmp_path, *FORMATS[name]))
    tensors = {each: np.array(checkpoint.stored(each)) for each in checkpoint.shapes()}
    tensors[f"model.layers.1.mlp.up_proj.{tensor}"].flat[-1] = value
    for each, stored in tensors.items():
        if checkpoint.type_name(each) == "F8_E4M3":
            tensors[each] = stored.view(FLOAT8)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(
        LoadError, match=rf"tensor model\.layers\.1\.mlp\.up_proj\.{tensor} holds scales that are not finite"
    ):
        logits(opened(Written(tmp_path, {}, {})), NumpyOps())


def test_integers_of_4_bits_in_bytes(tmp_path: Path) -> None:
    def pack(name: str, matrix: Array) -> tuple[Tensors, Array]:
        rounded = round_matrix(matrix, 4, -1, symmetric=True, scale=BFLOAT16)
        return plain_integers(name, replace(rounded, codes=rounded.codes + 120), symmetric=True), rounded.values

    config = compressed_config({"num_bits": 4, "strategy": "channel"}, format="int-quantized")
    assert_numbers(write_quantized(tmp_path, config, pack))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats() | st.sampled_from(["", "re:(", "int", "4", "group"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["bits", "format", "("]), inner, max_size=2),
    max_leaves=4,
)
KEYS = (
    "bits",
    "group_size",
    "checkpoint_format",
    "dynamic",
    "pack_dtype",
    "quant_method",
    "version",
    "zero_point",
    "format",
)
KEYS += ("ignore", "config_groups", "sparsity_config", "transform_config", "weight_block_size", "activation_scheme", "fmt")
WEIGHT_KEYS = ("num_bits", "type", "symmetric", "strategy", "block_structure", "targets", "weights", "input_activations")


@given(
    name=st.sampled_from(sorted(FORMATS)),
    key=st.sampled_from((*KEYS, *WEIGHT_KEYS)),
    value=ANYTHING,
    change=st.sampled_from(["none", "missing", "other shape", "other type"]),
    seed=st.integers(0, 999),
)
def test_any_configuration_and_any_tensors_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, name: str, key: str, value: Any, change: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    config, pack = FORMATS[name]
    written = write_quantized(folder, config, lambda tensor, matrix: pack(tensor, matrix[:64, :64]))
    tensors = {each: opened(written).stored(each) for each in opened(written).shapes()}
    parts = [each for each in tensors if "up_proj" in each]
    chosen = parts[seed % len(parts)]
    if change == "missing":
        del tensors[chosen]
    elif change == "other shape":
        tensors[chosen] = tensors[chosen].reshape(-1)[: seed % 7]
    elif change == "other type":
        tensors[chosen] = tensors[chosen].astype(np.float32)
    config = json.loads(json.dumps(config))
    group = config["config_groups"]["group_0"] if "config_groups" in config else config
    {"targets": group, "weights": group, "input_activations": group}.get(
        key, group.get("weights", config) if key in WEIGHT_KEYS else config
    )[key] = value
    (folder / "config.json").write_text(json.dumps(MODEL | {"quantization_config": config}))
    write_safetensors(folder / "model.safetensors", tensors)
    assert "\n" not in complaint(folder)


def complaint(folder: Path) -> str:
    """Why its projections cannot be read; empty if they can."""
    try:
        checkpoint = open_checkpoint(folder)
        for each in {tensor.rpartition(".")[0] for tensor in checkpoint.shapes()}:
            stored = checkpoint.projection(each)
            assert stored is None or stored.read().shape == stored.shape
    except LoadError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "missing", "words"),
    [
        ("awq-symmetric", "qzeros", "has no tensor .*qzeros"),
        ("gptq-32", "scales", "has no tensor .*scales, without which its codes mean nothing"),
        ("gptq-32", "qzeros", "has no tensor .*qzeros, which belongs to its codes"),
        ("w4a16-32", "weight_shape", "has no tensor .*weight_shape"),
        ("w4a16-32", "weight_scale", "has no tensor .*weight_scale, without which"),
    ],
)
def test_missing_parts_are_named(tmp_path: Path, name: str, missing: str, words: str) -> None:
    written = write_quantized(tmp_path, *FORMATS[name])
    checkpoint = opened(written)
    kept = {each: checkpoint.stored(each) for each in checkpoint.shapes() if not each.endswith(f"v_proj.{missing}")}
    write_safetensors(tmp_path / "other", kept)
    (tmp_path / "other").replace(tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=words):
        logits(opened(written), NumpyOps())


def test_codes_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    written = write_quantized(tmp_path, *FORMATS["fp8-channel"])
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    stored = opened(written).stored("model.layers.0.mlp.up_proj.weight").tobytes()
    data[data.find(stored)] = 0x7F
    (tmp_path / "model.safetensors").write_bytes(bytes(data))
    with pytest.raises(LoadError, match=r"up_proj\.weight holds codes that are no numbers"):
        logits(opened(written), NumpyOps())


def test_a_second_unpacking_by_the_books(tmp_path: Path) -> None:
    """OCTAVO_QUANTIZED_FIXTURES: a folder of models that the public tools wrote, in place of ours."""
    folder = os.environ.get("OCTAVO_QUANTIZED_FIXTURES")
    models = sorted(path.parent for path in Path(folder).glob("*/config.json")) if folder else []
    for name in () if folder else ("awq-32", "gptq-32", "gptq-desc_act", "w4a16-asym", "w8a16-128", "w8a8", "fp8-block"):
        models.append(write_quantized(tmp_path / name, *FORMATS[name]).path)
    assert models
    for model in models:
        checkpoint = open_checkpoint(model)
        assert isinstance(checkpoint, SafetensorsCheckpoint)
        for name in sorted({tensor.rpartition(".")[0] for tensor in checkpoint.shapes()}):
            stored = checkpoint.projection(name)
            if stored is not None:
                np.testing.assert_array_equal(stored.read().dequantized(), unpacked(checkpoint, name), f"{model} {name}")
        ours, expected = logits(checkpoint, CpuOps()), logits(checkpoint, NumpyOps())
        assert np.linalg.norm(ours - expected) <= 1e-2 * np.linalg.norm(expected), model
