"""Rotation, the paged cache, and attention over it."""

from __future__ import annotations

from octavo.kernels.cpu.buffers import INT32, INT64
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.calls import Calls
from octavo.kernels.ops import Array, KVCache, RotaryTable
from octavo.runner.batch import Batch

_ALL_KEYS = 2**31 - 1  # a window that nothing lies before


def write_cache(
    calls: Calls,
    qkv: Array,
    cache: KVCache,
    layer: int,
    batch: Batch,
    heads: tuple[int, int, int],
    table: RotaryTable | None,
    interleaved: bool,
) -> None:
    """Rotate q and k, and store k and v in `batch.slot_mapping`. IndexError for a slot, a layer, or a position of the
    table that does not exist."""
    tokens = _tokens(qkv, heads)
    own = calls.cache(_own(cache, heads))
    slots, positions = batch.slot_mapping, batch.positions
    if slots.shape != (tokens,):
        raise ValueError(f"expected {tokens} slots, got shape {slots.shape}")
    if table is not None and positions.shape != (tokens,):
        raise ValueError(f"expected {tokens} positions, got shape {positions.shape}")
    source = calls.address(qkv) if table is None else calls.writable(qkv)
    rotation = (None, 0, 0) if table is None else calls.rotary_table(table, positions)
    places = None if table is None else calls.address(positions, INT32)
    target = calls.address(slots, INT64), tokens
    calls.call("octavo_cache_write", own, layer, source, heads[0], *target, *rotation, places, int(interleaved))


def attention(
    calls: Calls,
    qkv: Array,
    cache: KVCache,
    layer: int,
    batch: Batch,
    heads: tuple[int, int, int],
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Array | None,
    causal: bool,
) -> Array:
    """Attention of the q heads over the paged cache: [t, n * d]. IndexError for a block that does not exist."""
    tokens = _tokens(qkv, heads)
    own = calls.cache(_own(cache, heads))
    lengths, starts, tables = batch.seq_lens, batch.query_starts, batch.block_tables
    (sequences,) = lengths.shape
    if starts.shape != (sequences + 1,) or tables.ndim != 2 or tables.shape[0] != sequences:
        raise ValueError(f"{sequences} lengths, {starts.shape} query starts and tables of shape {tables.shape} differ")
    if sinks is not None and sinks.shape != heads[:1]:
        raise ValueError(f"expected {heads[0]} sinks, got shape {sinks.shape}")
    out = calls.new(tokens, heads[0] * heads[2])
    source = calls.address(qkv), heads[0], tokens
    spans = calls.address(starts, INT32), calls.address(lengths, INT32), sequences
    blocks = calls.address(tables, INT32), tables.shape[1]
    scores = scale, _ALL_KEYS if window is None else window, soft_cap or 0.0
    rest = None if sinks is None else calls.address(sinks), int(causal)
    calls.call("octavo_attention", own, layer, *source, *spans, *blocks, *scores, *rest, calls.address(out))
    return out


def _tokens(qkv: Array, heads: tuple[int, int, int]) -> int:
    """The rows of qkv [t, (n + 2k) * d]."""
    n, k, d = heads
    tokens: int = qkv.shape[0]
    width = qkv.shape[1]
    if width != (n + 2 * k) * d:
        raise ValueError(f"expected rows of ({n} + 2 * {k}) * {d}, got {width}")
    return tokens


def _own(cache: KVCache, heads: tuple[int, int, int]) -> NativeCache:
    if not isinstance(cache, NativeCache):
        raise TypeError(f"the cpu backend cannot read a {type(cache).__name__}")
    if cache.kv_heads != heads[1] or cache.head_size != heads[2]:
        raise ValueError(f"the cache has {cache.kv_heads} KV heads of {cache.head_size}, not {heads[1]} of {heads[2]}")
    return cache
