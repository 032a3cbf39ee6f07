"""Packed projections: what their codes stand for, and products with them beside numpy's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.ops import Quantization
from octavo.kernels.packed import INTEGER_BITS, PackedTensor, Packing
from tests.kernels.native import DTYPES, FLOAT8, INT8, NUMPY, each_isa, each_linear_isa, error, native, rounds_activations
from tests.kernels.packed import BFLOAT16, FLOAT16, FLOAT32, random_packed

PACKINGS = [
    Packing("int4", 32, BFLOAT16),
    Packing("int4", 64, FLOAT16, "zero"),
    Packing("int4", 128, FLOAT16, "least"),
    Packing("int4", 0, BFLOAT16, "zero"),
    Packing("int8", 0, BFLOAT16),
    Packing("int8", 0, FLOAT32, activation_bits=8),
    Packing("int8", 16, FLOAT16, "zero"),
    Packing("int8", 128, FLOAT32, activation_bits=8),
    Packing("fp8_e4m3", 0, BFLOAT16),
    Packing("fp8_e4m3", 128, FLOAT32),
    Packing("fp4_e2m1", 32, BFLOAT16),
    Packing("fp4_e2m1", 0, FLOAT32),
    Packing("fp4_e2m1", 16, FLOAT16, activation_bits=8),
    Packing("int4", 32, INT8, "least"),  # GGUF's Q4_K
    Packing("int5", 32, INT8, "least"),  # Q5_K
    Packing("int6", 16, INT8),  # Q6_K
    Packing("int5", 32, FLOAT16, activation_bits=8),  # Q5_0
    Packing("int5", 32, FLOAT16, "least"),  # Q5_1
    Packing("int6", 64, INT8, "least", activation_bits=8),
    Packing("int8", 256, INT8, activation_bits=8),
]
each_packing = pytest.mark.parametrize(
    "packing", PACKINGS, ids=lambda p: f"{p.codes}-{p.group}-{p.scale}-{p.offset}-{p.activation_bits}"
)


@each_packing
def test_numbers_are_those_of_the_definition(packing):
    """One number after the other, in Python's own arithmetic."""
    width = 300 if packing.has_factors else 40
    packed = random_packed(np.random.default_rng(1), packing, 3, width, ordered=True)
    matrix = packed.dequantized()
    group = packing.group or width
    for output in range(3):
        for column in range(width):
            code = int(packed.codes[output, column])
            scale = float(packed.scales[output, column // group])
            offset = 0.0 if packed.offsets is None else float(packed.offsets[output, column // group])
            if packed.factors is not None:
                kinds = 2 if packing.offset == "least" else 1
                scale *= float(packed.factors[output, column // 256 * kinds])
                offset *= float(packed.factors[output, column // 256 * kinds + kinds - 1])
            if packing.codes == "fp8_e4m3":
                exponent, mantissa = code >> 3 & 15, code & 7
                value = 2.0 ** (max(exponent, 1) - 10) * (mantissa + 8 * (exponent > 0)) * (-1 if code >= 128 else 1)
            elif packing.codes == "fp4_e2m1":
                exponent, mantissa = code >> 1 & 3, code & 1
                value = 2.0 ** (max(exponent, 1) - 2) * (mantissa + 2 * (exponent > 0)) * (-1 if code >= 8 else 1)
            else:
                value = float(code - (0 if packing.offset != "none" else 2 ** INTEGER_BITS[packing.codes] // 2))
            expected = scale * (value - offset) if packing.offset == "zero" else scale * value + offset
            assert matrix[output, packed.order[column]] == np.float32(expected)


def largest_scales(part: PackedTensor) -> np.ndarray:
    """Of each output."""
    largest = np.abs(part.scales.astype(np.float32)).max(axis=1)
    return largest if part.factors is None else largest * np.abs(part.factors.astype(np.float32)).max(axis=1)


def assert_close(isa: str, ours: np.ndarray, numpys: np.ndarray, x: np.ndarray, parts: list[PackedTensor]) -> None:
    """Within float32's rounding of the largest terms that there can be; more where activations become bfloat16."""
    reach = np.concatenate([largest_scales(part) for part in parts])
    sums = np.abs(x).sum(axis=1, keepdims=True)
    assert ours.shape == numpys.shape
    is_float = any(part.packing.codes == "fp8_e4m3" for part in parts)
    rounding = 2**-8 if is_float and rounds_activations(isa, FLOAT8) else 1e-6
    allowed = rounding * sums * reach * (448 if is_float else 255) + 1e-6 * (np.abs(numpys) + 4)  # biases and residuals
    assert np.all(np.abs(ours - numpys) <= allowed)


@each_linear_isa
@each_packing
@given(width=st.integers(1, 300), out=st.integers(1, 90), seed=st.integers(0, 99))
def test_rows_that_are_looked_up_are_what_is_stored_exactly(isa, packing, width, out, seed):
    part = random_packed(np.random.default_rng(seed), packing, out, width, ordered=seed % 2 == 0)
    ids = np.arange(out, dtype=np.int32)
    for ops in (NUMPY, native(isa)):
        assert np.array_equal(ops.embedding(ids, ops.linear_weight([part])), part.dequantized())


@each_linear_isa
@each_packing
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 300),
    outs=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    residual=st.booleans(),
)
def test_products_equal_numpy(isa, packing, rows, width, outs, seed, residual):
    """Parts of one kind, which share an order or have none."""
    random = np.random.default_rng(seed)
    first = random_packed(random, packing, outs[0], width, ordered=seed % 2 == 0)
    parts = [first, *(replace(random_packed(random, packing, out, width), order=first.order) for out in outs[1:])]
    x, bias = random.standard_normal((rows, width), np.float32), random.standard_normal(sum(outs), np.float32)
    old = random.standard_normal((rows, sum(outs)), np.float32)
    biases = np.split(bias, np.cumsum(outs)[:-1])
    ours, numpys = (
        ops.linear(x, ops.linear_weight(parts, biases), old.copy() if residual else None) for ops in (native(isa), NUMPY)
    )
    assert_close(isa, ours, numpys, x, parts)


@each_linear_isa
@given(
    rows=st.integers(1, 20),
    width=st.integers(1, 200),
    kinds=st.lists(st.sampled_from(PACKINGS), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_parts_of_several_kinds_are_one_weight(isa, rows, width, kinds, seed):
    """A fused projection of which some parts are quantized in one way, some in another and some not at all."""
    random = np.random.default_rng(seed)
    packed = [random_packed(random, packing, 33, width, ordered=i == 1) for i, packing in enumerate(kinds)]
    plain = random.standard_normal((20, width), np.float32)
    parts, x = [packed[0], plain, *packed[1:]], random.standard_normal((rows, width), np.float32)
    biases = [random.standard_normal(len(part), np.float32) for part in parts]
    ours, numpys = (ops.linear(x, ops.linear_weight(parts, biases)) for ops in (native(isa), NUMPY))
    assert np.abs(ours[:, 33:53] - numpys[:, 33:53]).max() < 1e-5 * (1 + width**0.5)
    assert_close(isa, np.delete(ours, np.s_[33:53], 1), np.delete(numpys, np.s_[33:53], 1), x, packed)
    assert native(isa).weight_bytes(parts) == native(isa).linear_weight(parts).nbytes


@each_linear_isa
@each_packing
@pytest.mark.parametrize("is_mixed", [False, True])
def test_activations_equal_numpy(isa, packing, is_mixed):
    random = np.random.default_rng(3)
    gate = random_packed(random, packing, 50, 96)
    up = random.standard_normal((50, 96), np.float32) / 10 if is_mixed else random_packed(random, packing, 50, 96)
    x = random.standard_normal((7, 96), np.float32)
    biases = [random.standard_normal(50, np.float32) for _ in range(2)]
    ours, numpys = (ops.linear(x, ops.linear_weight([gate, up], biases, activation="silu")) for ops in (native(isa), NUMPY))
    assert error(ours, numpys) < (3e-2 if packing.codes == "fp8_e4m3" else 1e-4)


@each_linear_isa
@each_packing
def test_bits_of_a_row_do_not_depend_on_the_others(isa, packing):
    random = np.random.default_rng(4)
    weight = native(isa).linear_weight([random_packed(random, packing, 150, 160, ordered=True)])
    x = random.standard_normal((100, 160), np.float32)
    alone = np.concatenate([native(isa, 1).linear(x[i : i + 1], weight) for i in range(len(x))])
    for rows in (2, 3, 5, 12, 13, 31, 33, 100):
        assert np.array_equal(native(isa).linear(x[:rows], weight), alone[:rows]), rows


@each_linear_isa
@given(rows=st.integers(1, 40), width=st.integers(1, 200), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_weights_are_rounded_to_the_same_8_bit_floats(isa, rows, width, dtype, seed):
    random, float8 = np.random.default_rng(seed), Quantization(8, is_float=True)
    part = (random.standard_normal((rows, width), np.float32) * np.exp2(random.integers(-12, 4, (rows, 1)))).astype(dtype)
    part[random.random(rows) < 0.1] = 0
    ids, x = np.arange(rows, dtype=np.int32), random.standard_normal((3, width), np.float32)
    ours, numpys = (ops.linear_weight([part], quantization=float8) for ops in (native(isa), NUMPY))
    assert np.array_equal(native(isa).embedding(ids, ours), NUMPY.embedding(ids, numpys))
    largest = np.abs(part.astype(np.float32)).max()
    allowed = (2**-8 if rounds_activations(isa, FLOAT8) else 1e-6) * np.abs(x).sum(axis=1, keepdims=True) * largest
    assert np.all(np.abs(native(isa).linear(x, ours) - NUMPY.linear(x, numpys)) <= allowed)


@each_isa
@pytest.mark.parametrize("packing", [PACKINGS[1], PACKINGS[5], PACKINGS[9], PACKINGS[10]], ids=str)
def test_experts_of_packed_weights_equal_numpy(isa, packing):
    random = np.random.default_rng(5)
    orders = [random.permutation(128).astype(np.int32) for _ in range(3)]

    def weights(ops):
        seeded = np.random.default_rng(6)
        gate_up, down = [], []
        for order in orders:
            parts = [replace(random_packed(seeded, packing, 64, 128), order=order) for _ in range(2)]
            gate_up.append(ops.linear_weight(parts, activation="silu"))
            down.append(ops.linear_weight([random_packed(seeded, packing, 128, 64)]))
        return ops.expert_weights(gate_up, down)

    x, routing = random.standard_normal((40, 128), np.float32), np.eye(3, dtype=np.float32)[random.integers(0, 3, 40)]
    ours, numpys = (ops.experts(x, routing, weights(ops)) for ops in (native(isa), NUMPY))
    assert error(ours, numpys) < (3e-2 if packing.codes == "fp8_e4m3" else 1e-3)


def test_memory_is_that_of_codes_and_scales():
    """Of bfloat16's: at most 0.30 in 4 bits with groups of 64, at most 0.52 in 8 bits with groups of 128 or none."""
    ops = native("auto")
    bfloat16 = ops.weight_bytes([np.zeros((512, 2048), BFLOAT16)])
    for packing in PACKINGS:
        part = PackedTensor.without_content(packing, (512, 2048))
        share = ops.weight_bytes([part]) / bfloat16
        is_4_bits = packing.codes in ("int4", "fp4_e2m1")
        bits = INTEGER_BITS.get(packing.codes, 4 if is_4_bits else 8) + (
            8 * (packing.scale.itemsize + (packing.offset_dtype or np.dtype("V0")).itemsize) / (packing.group or 2048)
        )
        bits += 16 * packing.factors(2048) / 2048
        assert share == pytest.approx(bits / 16, rel=2e-3), packing
        if packing.group in (0, 64, 128) or packing is PACKINGS[10]:
            assert share <= (0.30 if is_4_bits else 0.52)


def test_what_does_not_fit_is_refused():
    ops, random = native("auto"), np.random.default_rng(7)
    part = random_packed(random, PACKINGS[0], 8, 64)
    with pytest.raises(ValueError, match="groups of 8"):
        ops.linear_weight([random_packed(random, Packing("int4", 8, BFLOAT16), 8, 64)])
    with pytest.raises(ValueError, match="expected scales of bfloat16"):
        ops.linear_weight([replace(part, scales=part.scales.astype(np.float32))])
    with pytest.raises(ValueError, match=r"expected scales of bfloat16 \(8, 2\)"):
        ops.linear_weight([replace(part, scales=part.scales[:, :1])])
    with pytest.raises(ValueError, match="not every input has one place"):
        ops.linear_weight([replace(part, order=np.zeros(64, np.int32))])
    with pytest.raises(ValueError, match="at most 65536 inputs"):
        ops.linear_weight([random_packed(random, Packing("int8", 0, BFLOAT16, "zero"), 1, 65600)])


def test_factors_that_do_not_fit_are_refused():
    ops, random = native("auto"), np.random.default_rng(8)
    part = random_packed(random, Packing("int4", 32, INT8, "least"), 8, 300)
    with pytest.raises(ValueError, match=r"expected factors of float16 \(8, 4\)"):
        ops.linear_weight([replace(part, factors=part.factors[:, :2])])
    with pytest.raises(ValueError, match="factors, do not fit"):
        ops.linear_weight([replace(part, factors=None)])
    for packing, what in (
        (Packing("int4", 0, INT8), "groups of 0"),
        (Packing("int8", 48, INT8), "groups of 48"),
        (Packing("int4", 32, INT8, "zero"), "offsets of 1"),
        (Packing("fp8_e4m3", 32, INT8), "scales of 3"),
    ):
        with pytest.raises(ValueError, match=f"cannot have {what}"):
            ops.weight_bytes([PackedTensor.without_content(packing, (8, 300))])
