"""Paged attention against numpy, and its bits in one piece, in chunks, by decode, and over threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.runner.batch import Batch
from tests.kernels.native import (
    BFLOAT16,
    FLOAT8,
    FLOAT32,
    INT8,
    NUMPY,
    each_cache_dtype,
    each_isa,
    native,
    rounds_activations,
)
from tests.kernels.paged import LAYER, Paged


def tolerance(isa: str, dtype: np.dtype, soft_cap: float = 0.0) -> float:
    """Queries and softmax weights are rounded where VDPBF16PS (to bfloat16) or VPDPWSSD (to 16 bits) multiplies them.
    Elsewhere a soft cap multiplies 1 - 2 / (e^2x + 1), whose error is that of float32's numbers round 1."""
    plain = 1e-5 + soft_cap * 2**-22
    if dtype == INT8:
        return 1e-3 if rounds_activations(isa, BFLOAT16) else plain
    return 3e-2 if rounds_activations(isa, dtype) else plain


def scorings(heads: int) -> st.SearchStrategy[dict]:
    """Keyword arguments of `Ops.attention` beyond the plain form."""
    sinks = st.integers(0, 1000).map(lambda seed: 3 * np.random.default_rng(seed).standard_normal(heads, np.float32))
    return st.fixed_dictionaries(
        {},
        optional={
            "window": st.integers(1, 200),
            "soft_cap": st.sampled_from([0.5, 3.0, 50.0]),
            "sinks": sinks,
            "causal": st.just(False),
        },
    )


@each_isa
@each_cache_dtype
@given(
    spans=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 70)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 7, 25]),
    head_size=st.sampled_from([8, 15, 16, 64, 80]),
    block_size=st.sampled_from([16, 32, 48]),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_attention_equals_numpy(isa, dtype, spans, kv_heads, group, head_size, block_size, seed, data):
    """Sequences with `before` tokens computed earlier and `now` new ones."""
    heads = (kv_heads * group, kv_heads, head_size)
    scoring = data.draw(scorings(heads[0]))
    paged = Paged([before + now for before, now in spans], heads, block_size, seed)
    ranges = [(i, before, before + now) for i, (before, now) in enumerate(spans)]
    ours = paged.attend(native(isa), paged.cache(native(isa), dtype), ranges, **scoring)
    numpys = paged.attend(NUMPY, paged.cache(NUMPY, dtype), ranges, **scoring)
    assert np.abs(ours - numpys).max() < tolerance(isa, dtype, scoring.get("soft_cap", 0.0))


def dense(paged: Paged, position: int, window: int, soft_cap: float, sinks: np.ndarray) -> np.ndarray:
    """The formulas written out for one query of sequence 0, in float64."""
    n, k, d = paged.heads
    rows = paged.qkv[0].astype(np.float64).reshape(-1, n + 2 * k, d)
    seen = slice(max(0, position - window + 1), position + 1)
    outputs = []
    for head in range(n):
        scores = rows[seen, n + head // (n // k)] @ rows[position, head] * paged.scale
        scores = soft_cap * np.tanh(scores / soft_cap)
        weights = np.exp(scores) / (np.exp(scores).sum() + np.exp(float(sinks[head])))
        outputs.append(weights @ rows[seen, n + k + head // (n // k)])
    return np.concatenate(outputs)


def test_numpy_follows_the_formulas():
    paged = Paged([90], (4, 2, 16), 16)
    sinks = np.float32([-1, 0, 2, 40])
    got = paged.attend(NUMPY, paged.cache(NUMPY, FLOAT32), [(0, 0, 90)], window=33, soft_cap=1.5, sinks=sinks)
    for position in (0, 1, 32, 33, 89):
        assert np.abs(got[position] - dense(paged, position, 33, 1.5, sinks)).max() < 1e-6


@each_isa
def test_a_sink_beyond_float32_leaves_the_keys_nothing(isa):
    paged = Paged([40], (2, 1, 16), 16)
    sinks = np.float32([500, -500])
    for ops in (NUMPY, native(isa)):
        got = paged.attend(ops, paged.cache(ops, FLOAT32), [(0, 0, 40)], sinks=sinks)
        plain = paged.attend(ops, paged.cache(ops, FLOAT32), [(0, 0, 40)])
        assert np.array_equal(got[:, :16], np.zeros((40, 16)))
        assert np.array_equal(got[:, 16:], plain[:, 16:])


@each_isa
def test_numbers_that_are_not_finite_show_up_behind_any_number_of_keys(isa):
    """A query, or the key with which a split of the keys begins: nothing of a row that sees them is finite."""
    n, _, d = heads = (2, 1, 16)
    for token, column in ((1099, 0), (512, n * d)):
        paged = Paged([1100], heads, 16)
        paged.qkv[0][token, column : column + d] = np.nan
        for sinks in (None, np.float32([1, -1])):
            got = paged.attend(native(isa), paged.cache(native(isa), FLOAT32), [(0, 0, 1100)], sinks=sinks)
            assert np.isnan(got[token, :d]).all(), (token, sinks)
            assert np.isfinite(got[:token]).all()


@each_isa
def test_scores_far_above_the_first_equal_numpys(isa):
    paged = Paged([700], (2, 1, 16), 16)
    paged.scale = 4.0
    got = paged.attend(native(isa), paged.cache(native(isa), FLOAT32), [(0, 0, 700)])
    numpys = paged.attend(NUMPY, paged.cache(NUMPY, FLOAT32), [(0, 0, 700)])
    assert np.abs(got - numpys).max() < 2e-4  # errors of scores of some hundred
    in_two = [paged.attend(native(isa), paged.cache(native(isa), FLOAT32), [(0, *part)]) for part in ((0, 300), (300, 700))]
    assert np.array_equal(np.concatenate(in_two), got)


def test_numpy_without_causal_sees_all_keys():
    paged = Paged([150], (4, 2, 16), 16)
    n, k, d = paged.heads
    got = paged.attend(NUMPY, paged.cache(NUMPY, FLOAT32), [(0, 0, 150)], causal=False).reshape(150, n, d)
    rows = paged.qkv[0].astype(np.float64).reshape(150, n + 2 * k, d)
    for head in range(n):
        weights = np.exp(rows[:, head] @ rows[:, n + head // (n // k)].T * paged.scale)
        want = weights / weights.sum(axis=1, keepdims=True) @ rows[:, n + k + head // (n // k)]
        assert np.abs(got[:, head] - want).max() < 1e-6


@each_isa
@each_cache_dtype
def test_without_causal_bits_do_not_depend_on_the_batch_or_threads(isa, dtype):
    paged = Paged([1100, 530, 20], (6, 2, 32), 16)
    cache = paged.cache(native(isa), dtype)
    whole = paged.attend(native(isa, 1), cache, [(0, 0, 1100)], causal=False)
    for threads in (1, 2, 3):
        ops = native(isa, threads)
        among = paged.attend(ops, cache, [(1, 0, 530), (0, 0, 1100), (2, 0, 20)], causal=False)
        assert np.array_equal(among[530:1630], whole), threads
        for start in (1, 511, 1099):
            assert np.array_equal(paged.attend(ops, cache, [(0, start, 1100)], causal=False), whole[start:])


SCORINGS = (
    {},
    {"window": 100, "sinks": np.linspace(-2, 2, 6, dtype=np.float32)},
    {"window": 513, "soft_cap": 2.0},
)


@each_isa
@each_cache_dtype
@pytest.mark.parametrize("scoring", SCORINGS, ids=["plain", "window-sinks", "window-soft-cap"])
@pytest.mark.parametrize(("length", "heads", "block_size"), [(700, (6, 2, 16), 16), (1100, (6, 1, 40), 48)])
def test_bits_do_not_depend_on_chunks_batch_or_threads(isa, dtype, scoring, length, heads, block_size):
    paged = Paged([length, 530, 20], heads, block_size)
    cache = paged.cache(native(isa), dtype)
    whole = paged.attend(native(isa), cache, [(0, 0, length)], **scoring)
    for threads in (1, 2):
        ops = native(isa, threads)
        assert np.array_equal(paged.attend(ops, cache, [(0, 0, length)], **scoring), whole)
        for chunk in (7, 64, 511):
            starts = range(0, length, chunk)
            pieces = [paged.attend(ops, cache, [(0, start, min(start + chunk, length))], **scoring) for start in starts]
            assert np.array_equal(np.concatenate(pieces), whole), (threads, chunk)
        for position in [*range(0, length, 37), 511, 512, 513, length - 1]:
            alone = paged.attend(ops, cache, [(0, position, position + 1)], **scoring)
            assert np.array_equal(alone[0], whole[position]), (threads, position)
            among = paged.attend(ops, cache, [(1, 529, 530), (0, position, position + 1), (2, 3, 20)], **scoring)
            assert np.array_equal(among[1], whole[position]), (threads, position)


@each_isa
@each_cache_dtype
def test_every_batch_size_up_to_64_gives_a_row_the_same_bits(isa, dtype):
    lengths = np.random.default_rng(2).integers(1, 90, 64).tolist()
    paged = Paged(lengths, (4, 2, 24), 16)
    cache = paged.cache(native(isa), dtype)
    last = [(i, length - 1, length) for i, length in enumerate(lengths)]
    alone = np.concatenate([paged.attend(native(isa, 1), cache, [one]) for one in last])
    for size in range(1, 65):
        assert np.array_equal(paged.attend(native(isa), cache, last[64 - size :]), alone[64 - size :]), size


@each_isa
@each_cache_dtype
def test_many_splits_over_threads(isa, dtype):
    """One long sequence: its splits are spread over threads, merged by whoever ends last, and still in order."""
    paged = Paged([2600], (4, 2, 16), 16)
    cache = paged.cache(native(isa), dtype)
    one = paged.attend(native(isa, 1), cache, [(0, 2590, 2600)])
    numpys = paged.attend(NUMPY, paged.cache(NUMPY, dtype), [(0, 2590, 2600)])
    assert np.abs(one - numpys).max() < tolerance(isa, dtype)
    windowed = paged.attend(native(isa, 1), cache, [(0, 2590, 2600)], window=1500)
    assert np.abs(
        windowed - paged.attend(NUMPY, paged.cache(NUMPY, dtype), [(0, 2590, 2600)], window=1500)
    ).max() < tolerance(isa, dtype)
    for threads in (2, 3, 5):
        assert np.array_equal(paged.attend(native(isa, threads), cache, [(0, 2590, 2600)]), one)
        assert np.array_equal(paged.attend(native(isa, threads), cache, [(0, 2590, 2600)], window=1500), windowed)


def stored(ops, dtype: np.dtype, values: np.ndarray) -> np.ndarray:
    """[t, d] values as a cache of one KV head gives them back: attention over a single key is that key's value."""
    t, d = values.shape
    cache = ops.kv_cache(1, t, 16, 1, d, dtype)
    qkv = np.concatenate([np.zeros((t, 2 * d), np.float32), values], axis=1)
    nothing = np.zeros(0, np.int32)
    batch = Batch(
        token_ids=nothing,
        positions=nothing,
        slot_mapping=16 * np.arange(t, dtype=np.int64),
        query_starts=np.arange(t + 1, dtype=np.int32),
        seq_lens=np.ones(t, np.int32),
        block_tables=np.arange(t, dtype=np.int32)[:, None],
        logits_rows=nothing,
    )
    ops.write_cache(qkv, cache, 0, batch, (1, 1, d))
    return ops.attention(qkv, cache, 0, batch, (1, 1, d), 1.0)


@each_isa
@each_cache_dtype
def test_what_is_stored_is_rounded_to_nearest_even(isa, dtype):
    values = (
        np.random.default_rng(3).standard_normal((50, 33), np.float32) * np.logspace(-5, 3, 50, dtype=np.float32)[:, None]
    )
    got, numpys = stored(native(isa), dtype, values), stored(NUMPY, dtype, values)
    if dtype == INT8:  # the scale is a factor of the softmax weight
        assert np.all(np.abs(got - numpys) <= 1e-6 * np.abs(numpys))
    else:
        bounded = np.clip(values, -448, 448) if dtype == FLOAT8 else values
        assert np.array_equal(got, numpys)
        assert np.array_equal(got, bounded.astype(dtype).astype(np.float32))


@each_isa
def test_every_float8_is_stored_as_itself(isa):
    everything = np.arange(256, dtype=np.uint8).view(FLOAT8).astype(np.float32)
    got = stored(native(isa), FLOAT8, np.repeat(everything[:, None], 5, axis=1))
    assert np.array_equal(got, np.repeat(everything[:, None], 5, axis=1), equal_nan=True)
    between = (everything[:-1] + everything[1:])[np.isfinite(everything[:-1] + everything[1:])][:, None] / 2
    near = np.concatenate([between, np.nextafter(between, np.float32(np.inf)), np.nextafter(between, np.float32(-np.inf))])
    assert np.array_equal(stored(native(isa), FLOAT8, near), near.astype(FLOAT8).astype(np.float32))
    beyond = np.float32([[449], [1e30], [-np.inf], [-465]])
    assert np.array_equal(stored(native(isa), FLOAT8, beyond), np.sign(beyond) * 448)


@each_isa
def test_int8_has_a_scale_for_each_token_and_head(isa):
    largest = np.logspace(-30, 30, 40, dtype=np.float32)[:, None]
    values = np.random.default_rng(0).uniform(-1, 1, (40, 24)).astype(np.float32) * largest
    for ops in (NUMPY, native(isa)):
        assert np.all(np.abs(stored(ops, INT8, values) - values) <= largest / 127 * 1.01)
        for wrong in (np.nan, np.inf, -np.inf):  # shows up in the token's row, and in no other
            spoilt = values.copy()
            spoilt[3, 5] = wrong
            got = stored(ops, INT8, spoilt)
            assert np.isnan(got[3]).all()
            assert np.array_equal(np.delete(got, 3, axis=0), np.delete(stored(ops, INT8, values), 3, axis=0))
        tiny = np.full((1, 24), 1e-45, np.float32)
        assert np.all(np.abs(stored(ops, INT8, tiny)) <= 127 * tiny)


@each_isa
@each_cache_dtype
def test_copied_blocks_hold_the_same(isa, dtype):
    ops = native(isa)
    paged = Paged([40], (2, 1, 24), 16)
    cache = paged.cache(ops, dtype)
    before = paged.attend(ops, cache, [(0, 0, 40)])
    free = [block for block in range(paged.num_blocks) if block not in paged.tables[0, :3]]
    cache.copy_blocks(list(zip(paged.tables[0, :3].tolist(), free, strict=False)))
    paged.tables[0, :3] = free[:3]
    assert np.array_equal(paged.attend(ops, cache, [(0, 0, 40)]), before)


def test_wrong_arguments_are_refused():
    ops = native("auto")
    paged = Paged([40], (2, 1, 24), 16)
    cache = paged.cache(ops, FLOAT32)
    with pytest.raises(IndexError, match="block"):
        cache.copy_blocks([(0, paged.num_blocks)])
    paged.tables[0, 1] = paged.num_blocks
    with pytest.raises(IndexError, match=f"block {paged.num_blocks} of"):
        paged.attend(ops, cache, [(0, 0, 40)])
    paged.tables = paged.tables[:, :2].copy()
    with pytest.raises(IndexError, match="table of 2 blocks"):
        paged.attend(ops, cache, [(0, 0, 40)])
    nothing = np.zeros(0, np.int32)
    for slot in (-1, paged.num_blocks * 16):
        batch = Batch(nothing, nothing, np.array([slot], np.int64), nothing, nothing, nothing.reshape(0, 0), nothing)
        with pytest.raises(IndexError, match="slot"):
            ops.write_cache(paged.qkv[0][:1], cache, LAYER, batch, paged.heads)
        with pytest.raises(IndexError, match="layer"):
            ops.write_cache(paged.qkv[0][:1], cache, 2, batch, paged.heads)
    with pytest.raises(ValueError, match="KV heads"):
        ops.write_cache(paged.qkv[0][:1], cache, LAYER, batch, (1, 1, 32))
    with pytest.raises(TypeError, match="NumpyKVCache"):
        paged.attend(ops, NUMPY.kv_cache(1, 2, 16, 1, 24, FLOAT32), [(0, 0, 40)])
    with pytest.raises(ValueError, match="multiple of 16"):
        ops.kv_cache(1, 1, 8, 1, 16, FLOAT32)
    with pytest.raises(ValueError, match="int8 or float8_e4m3fn, got int16"):
        ops.kv_cache(1, 1, 16, 1, 16, np.dtype(np.int16))
    paged = Paged([40], (2, 1, 24), 16)
    for wrong, message in (({"window": 0}, "window of 0"), ({"soft_cap": -1.0}, "soft cap of -1")):
        with pytest.raises(ValueError, match=message):
            paged.attend(ops, cache, [(0, 0, 40)], **wrong)
    with pytest.raises(ValueError, match="2 sinks"):
        paged.attend(ops, cache, [(0, 0, 40)], sinks=np.zeros(3, np.float32))


@each_cache_dtype
def test_the_size_of_a_cache_has_its_padding_and_scales(dtype):
    tokens, scales = 5 * 32 * 2, (2 * 4 if dtype == INT8 else 0)  # of each KV head
    assert NUMPY.kv_cache(3, 5, 32, 2, 40, dtype).nbytes == 3 * tokens * (80 * dtype.itemsize + scales)
    padded = 40 + 48  # V is padded to whole vectors
    assert native("auto").kv_cache(3, 5, 32, 2, 40, dtype).nbytes == 3 * tokens * (padded * dtype.itemsize + scales)


def test_a_cache_larger_than_the_address_space_is_a_memory_error():
    with pytest.raises(MemoryError):
        native("auto").kv_cache(100, 2**31 - 1, 1024, 64, 128, BFLOAT16)
    with pytest.raises(MemoryError):
        native("auto").kv_cache(100, 2**28, 16, 8, 128, BFLOAT16)


def test_a_closed_cache_is_an_error():
    ops = native("auto")
    paged = Paged([40], (2, 1, 24), 16)
    cache = paged.cache(ops, FLOAT32)
    assert cache.nbytes == 2 * paged.num_blocks * 16 * (24 + 32) * 4  # V is padded to whole vectors
    cache.close()
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        paged.attend(ops, cache, [(0, 0, 40)])
