"""Paged attention against numpy, and its bits in one piece, in chunks, by decode, and over threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.runner.batch import Batch
from tests.kernels.native import BFLOAT16, FLOAT32, NUMPY, each_dtype, each_isa, native, rounds_activations
from tests.kernels.paged import LAYER, Paged


def tolerance(isa: str, dtype: np.dtype) -> float:
    """Queries and softmax weights are rounded to bfloat16 where VDPBF16PS multiplies them."""
    return 3e-2 if rounds_activations(isa, dtype) else 1e-5


@each_isa
@each_dtype
@given(
    spans=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 70)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 7, 25]),
    head_size=st.sampled_from([8, 15, 16, 64, 80]),
    block_size=st.sampled_from([16, 32, 48]),
    seed=st.integers(0, 1000),
)
def test_attention_equals_numpy(isa, dtype, spans, kv_heads, group, head_size, block_size, seed):
    """Sequences with `before` tokens computed earlier and `now` new ones."""
    heads = (kv_heads * group, kv_heads, head_size)
    paged = Paged([before + now for before, now in spans], heads, block_size, seed)
    ranges = [(i, before, before + now) for i, (before, now) in enumerate(spans)]
    ours = paged.attend(native(isa), paged.cache(native(isa), dtype), ranges)
    numpys = paged.attend(NUMPY, paged.cache(NUMPY, dtype), ranges)
    assert np.abs(ours - numpys).max() < tolerance(isa, dtype)


@each_isa
@each_dtype
@pytest.mark.parametrize(("length", "heads", "block_size"), [(700, (6, 2, 16), 16), (1100, (3, 1, 40), 48)])
def test_bits_do_not_depend_on_chunks_batch_or_threads(isa, dtype, length, heads, block_size):
    paged = Paged([length, 530, 20], heads, block_size)
    cache = paged.cache(native(isa), dtype)
    whole = paged.attend(native(isa), cache, [(0, 0, length)])
    for threads in (1, 2):
        ops = native(isa, threads)
        assert np.array_equal(paged.attend(ops, cache, [(0, 0, length)]), whole)
        for chunk in (7, 64, 511):
            starts = range(0, length, chunk)
            pieces = [paged.attend(ops, cache, [(0, start, min(start + chunk, length))]) for start in starts]
            assert np.array_equal(np.concatenate(pieces), whole), (threads, chunk)
        for position in [*range(0, length, 13), 511, 512, 513, length - 1]:
            alone = paged.attend(ops, cache, [(0, position, position + 1)])
            assert np.array_equal(alone[0], whole[position]), (threads, position)
            among = paged.attend(ops, cache, [(1, 529, 530), (0, position, position + 1), (2, 3, 20)])
            assert np.array_equal(among[1], whole[position]), (threads, position)


@each_isa
@each_dtype
def test_many_splits_over_threads(isa, dtype):
    """One long sequence: its splits are spread over threads, merged by whoever ends last, and still in order."""
    paged = Paged([2600], (4, 2, 16), 16)
    cache = paged.cache(native(isa), dtype)
    one = paged.attend(native(isa, 1), cache, [(0, 2590, 2600)])
    numpys = paged.attend(NUMPY, paged.cache(NUMPY, dtype), [(0, 2590, 2600)])
    assert np.abs(one - numpys).max() < tolerance(isa, dtype)
    for threads in (2, 3, 5):
        assert np.array_equal(paged.attend(native(isa, threads), cache, [(0, 2590, 2600)]), one)


@each_isa
def test_what_is_stored_is_rounded_to_nearest_even(isa):
    """A sequence of one key: attention gives its value back."""
    for dtype in (FLOAT32, BFLOAT16, np.dtype(np.float16)):
        paged = Paged([1], (1, 1, 33), 16, seed=3)
        got = paged.attend(native(isa), paged.cache(native(isa), dtype), [(0, 0, 1)])
        assert np.array_equal(got, paged.qkv[0][:, 66:].astype(dtype).astype(np.float32))


@each_isa
@each_dtype
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
