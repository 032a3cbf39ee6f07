"""Blocks that were moved to host memory and back, to any other place, are what they were: bit for bit, all layers."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import KVCache, Ops
from tests.kernels.native import DTYPES, NUMPY, each_cache_dtype, each_isa, native
from tests.kernels.paged import Paged

HEADS = (4, 2, 24)


def host_for(cache: KVCache, slots: int) -> np.ndarray:
    return np.full((slots, cache.block_bytes), 0xA5, np.uint8)


def check_round_trip(ops: Ops, dtype: np.dtype, block_size: int) -> None:
    paged = Paged([3 * block_size, block_size], HEADS, block_size)
    cache = paged.cache(ops, dtype)
    ranges = [(0, 2 * block_size, 3 * block_size), (1, 0, block_size)]
    before = paged.attend(ops, cache, ranges)
    host = host_for(cache, 5)
    blocks = [*paged.tables[0, :3].tolist(), *paged.tables[1, :1].tolist()]
    cache.swap_out(list(zip(blocks, [4, 0, 3, 2], strict=True)), host)
    assert (host[1] == 0xA5).all(), "nothing else is written"
    cache.copy_blocks([(0, block) for block in range(1, paged.num_blocks)])
    rotated = [*blocks[1:], blocks[0]]
    cache.swap_in(list(zip([4, 0, 3, 2], rotated, strict=True)), host)
    paged.tables[0, :3], paged.tables[1, 0] = rotated[:3], rotated[3]
    np.testing.assert_array_equal(paged.attend(ops, cache, ranges), before)


@each_isa
@pytest.mark.parametrize("block_size", [16, 48])
@each_cache_dtype
def test_native_blocks_survive_the_way_out_and_in(isa: str, dtype: np.dtype, block_size: int) -> None:
    check_round_trip(native(isa), dtype, block_size)


@each_cache_dtype
def test_reference_blocks_survive_the_way_out_and_in(dtype: np.dtype) -> None:
    check_round_trip(NUMPY, dtype, 16)


def test_a_block_takes_the_bytes_that_it_says() -> None:
    for ops in (native("generic"), NUMPY):
        cache = ops.kv_cache(3, 7, 32, 2, 16, np.dtype(np.float32))
        assert cache.block_bytes == cache.nbytes // 7 == 3 * 2 * 32 * 2 * 16 * 4


def test_blocks_and_slots_that_do_not_exist_are_refused() -> None:
    cache = native("generic").kv_cache(1, 4, 16, 1, 16, np.dtype(np.float32))
    host = host_for(cache, 2)
    for move in [(4, 0), (-1, 0), (0, 2), (0, -1)]:
        with pytest.raises(IndexError):
            cache.swap_out([(0, 0), move], host)
        with pytest.raises(IndexError):
            cache.swap_in([(0, 0), move[::-1]], host)
    assert (host == 0xA5).all()
    with pytest.raises(ValueError, match="slots of"):
        cache.swap_out([(0, 0)], host[:, 1:])
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.swap_out([(0, 0)], host)


def test_layouts_differ_wherever_the_bytes_could() -> None:
    """Among instruction sets, dtypes and shapes; not by the number of blocks or threads."""
    bfloat16, float32 = DTYPES[1], DTYPES[0]
    first, *others = (
        ops.kv_cache(layers, blocks, size, 2, 16, dtype).layout
        for ops, layers, blocks, size, dtype in [
            (native("generic"), 2, 4, 16, float32),
            (NUMPY, 2, 4, 16, float32),
            (native("generic"), 2, 4, 16, bfloat16),
            (native("generic"), 3, 4, 16, float32),
            (native("generic"), 2, 4, 32, float32),
        ]
    )
    assert len({first, *others}) == 5
    assert CpuOps(1, "generic").kv_cache(2, 9, 16, 2, 16, float32).layout == first
