"""A recorded forward pass gives, bit for bit, what its operations give one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.cpu.calls import Immediate
from octavo.kernels.cpu.library import load_library
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.cpu.program import RecordedForward
from octavo.kernels.cpu.recorder import Recorder
from octavo.kernels.cpu.stand_ins import RESULTS, TOKENS, Count
from octavo.runner.batch import Batch
from tests.kernels.native import each_isa, native
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

BLOCK_SIZE, BLOCKS = 16, 12


def make_batch(lengths: list[tuple[int, int]], seed: int) -> Batch:
    """Sequences of (tokens in the cache before, tokens of this step), whose blocks do not overlap."""
    random = np.random.default_rng(seed)
    positions = np.concatenate([np.arange(past, past + new) for past, new in lengths])
    tables = random.permutation(BLOCKS)[: 3 * len(lengths)].reshape(len(lengths), 3)
    sequence = np.repeat(np.arange(len(lengths)), [new for _, new in lengths])
    starts = np.cumsum([0, *(new for _, new in lengths)])
    return Batch(
        token_ids=random.integers(0, 160, len(positions)).astype(np.int32),
        positions=positions.astype(np.int32),
        slot_mapping=(tables[sequence, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE).astype(np.int64),
        query_starts=starts.astype(np.int32),
        seq_lens=np.array([past + new for past, new in lengths], np.int32),
        block_tables=tables.astype(np.int32),
        logits_rows=random.integers(0, len(positions), random.integers(0, 5)).astype(np.int32),
    )


def make_cache(ops: CpuOps):
    return ops.kv_cache(2, BLOCKS, BLOCK_SIZE, 2, 16, np.dtype(np.float32))


batches = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 28)), min_size=1, max_size=4)


@each_isa
@given(steps=st.lists(batches, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_a_recorded_pass_repeats_its_operations(isa: str, steps: list[list[tuple[int, int]]], seed: int) -> None:
    ops = native(isa)
    model = tiny_model(ops, tiny_checkpoint(tiny_config(), seed=3))
    recorded, to_logits = ops.record(model.forward), ops.record(lambda *given: model.logits(model.forward(*given)))
    caches = [make_cache(ops) for _ in range(3)]
    for i, lengths in enumerate(steps):
        batch = make_batch(lengths, seed + i)
        got, logits = recorded(batch, caches[1]), to_logits(batch, caches[2])  # first, so that they need their own tables
        want = model.forward(batch, caches[0])
        assert np.array_equal(got, want)
        assert np.array_equal(logits, model.logits(want))


@given(
    operations=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), max_size=20),
    lengths=batches,
    seed=st.integers(0, 1000),
)
def test_any_pass_repeats_its_operations(operations: list[tuple[int, int, int]], lengths: Any, seed: int) -> None:
    """However long its results live, and whatever room they take."""
    ops, random = native("generic"), np.random.default_rng(seed)
    weights = {out: ops.linear_weight([random.standard_normal((out, 8), np.float32)]) for out in (8, 3, 24)}
    table, norm = ops.linear_weight([random.standard_normal((160, 8), np.float32)]), np.ones(8, np.float32)

    def forward(batch: Batch, _: object) -> Any:
        results = [ops.embedding(batch.token_ids, table)]  # [t, 8] each
        others = []
        for kind, i, j in operations:
            x, y = results[-3:][i % len(results[-3:])], results[-3:][j % len(results[-3:])]  # the older ones end
            if kind == 0:
                results.append(ops.rms_norm(x, norm, 1e-5))
            elif kind == 1 and x is not y:
                ops.linear(x, weights[8], y)
            elif kind == 2:
                results.append(ops.linear(x, weights[8]))
            else:
                others.append(ops.linear(x, weights[3 if kind == 3 else 24]))
        return ops.select_rows(ops.concatenate([*results[-2:], *others[-2:]]), batch.logits_rows)

    recorded, batch = ops.record(forward), make_batch(lengths, seed)
    assert np.array_equal(recorded(batch, make_cache(ops)), forward(batch, None))


def test_a_step_is_one_call_into_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers there are."""
    ops = CpuOps(1)
    model = tiny_model(ops, tiny_checkpoint(tiny_config(num_hidden_layers=2), seed=3))
    cache, batch = make_cache(ops), make_batch([(3, 2)], 0)
    recorded = RecordedForward(ops, model.forward)
    recorded(batch, cache)
    library: Any = CountingLibrary(load_library())
    monkeypatch.setattr(ops, "calls", Immediate(library, ops.context))
    model.forward(batch, cache)
    assert library.calls > 2 * 5  # what the counter sees where there is something to see
    library.calls = 0
    program = CountingLibrary(recorded._program)
    monkeypatch.setattr(recorded, "_program", program)
    recorded(batch, cache)
    assert (library.calls, program.calls) == (0, 1)


class CountingLibrary:
    """Counts the functions of something that are looked up, each for one call."""

    def __init__(self, functions: object) -> None:
        self._functions = functions
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        self.calls += 1
        return getattr(self._functions, name)


def test_results_share_memory() -> None:
    """Of a pass of any depth: as much as the widest layer takes, not all of them."""
    ops = native("auto")
    shallow, deep = (tiny_model(ops, tiny_checkpoint(tiny_config(num_hidden_layers=n), seed=3)) for n in (1, 2))
    passes = [RecordedForward(ops, model.forward) for model in (shallow, deep)]
    for each in passes:
        each(make_batch([(0, 3)], 0), make_cache(ops))
    sizes = [[(slot.variable, slot.units) for slot in each._recorder.slots] for each in passes]
    assert sizes[0] == sizes[1]


def test_what_a_step_gets_wrong_is_refused() -> None:
    ops = CpuOps(2)
    model = tiny_model(ops, tiny_checkpoint(tiny_config(), seed=3))
    recorded, cache, batch = ops.record(model.forward), make_cache(ops), make_batch([(0, 4), (2, 3)], 0)
    want = recorded(batch, cache)
    with pytest.raises(ValueError, match="int64"):
        recorded(replace(batch, token_ids=batch.token_ids.astype(np.int64)), cache)
    with pytest.raises(ValueError, match="positions"):
        recorded(replace(batch, positions=batch.positions[1:]), cache)
    with pytest.raises(ValueError, match="lengths"):
        recorded(replace(batch, seq_lens=batch.seq_lens[1:]), cache)
    with pytest.raises(IndexError, match="token id"):
        recorded(replace(batch, token_ids=batch.token_ids + 160), cache)
    with pytest.raises(IndexError, match="row 99"):
        recorded(replace(batch, logits_rows=np.array([99], np.int32)), cache)
    with pytest.raises(TypeError, match="cannot read"):
        recorded(batch, object())  # type: ignore[arg-type]
    assert np.array_equal(recorded(batch, cache), want)
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        recorded(batch, cache)
    ops.close()
    with pytest.raises(ValueError, match="closed"):
        recorded(batch, make_cache(native("auto")))


def test_a_pass_that_cannot_be_recorded_says_why() -> None:
    ops, batch = native("auto"), make_batch([(0, 4)], 0)
    weight = ops.linear_weight([np.ones((4, 4), np.float32)])
    cache, there = make_cache(ops), np.ones((3, 4), np.float32)
    with pytest.raises(TypeError, match="logits_rows"):
        ops.record(lambda batch, _: ops.embedding(batch.token_ids, weight))(batch, cache)
    with pytest.raises(ValueError, match="residual"):
        ops.record(lambda batch, _: ops.linear(ops.embedding(batch.token_ids, weight), weight, there))(batch, cache)


def test_rows_that_nobody_asks_for_are_left_out_of_the_last_layer() -> None:
    """From the last attention on, all that is computed is the selected rows."""
    ops = native("generic")
    model = tiny_model(ops, tiny_checkpoint(tiny_config(num_hidden_layers=2), seed=3))
    recorder = Recorder(make_cache(ops))
    with ops.recording(recorder):
        recorder.finish(model.forward(recorder.batch, recorder._cache))
    names = [function.__name__ for function, _ in recorder._calls]
    last = len(names) - 1 - names[::-1].index("octavo_attention")
    assert names[last + 1 : last + 3] == ["octavo_select_rows"] * 2  # what attention gave, and the residual
    assert names[last + 3 :] == ["octavo_linear", "octavo_rms_norm", "octavo_linear", "octavo_linear", "octavo_rms_norm"]
    for _, arguments in recorder._calls[last + 3 :]:
        assert Count(RESULTS) in arguments
        assert Count(TOKENS) not in arguments


def test_the_selection_stays_where_its_rows_are_needed_in_full() -> None:
    """One operation more on all rows after the selection."""
    ops = native("generic")
    recorder = Recorder(make_cache(ops))
    weight = np.ones(16, np.float32)
    with ops.recording(recorder):
        x = recorder.new(Count(TOKENS), 16)
        y = ops.rms_norm(x, weight, 1e-5)
        selected = ops.select_rows(y, recorder.batch.logits_rows)
        ops.rms_norm(y, weight, 1e-5)
    calls = list(recorder._calls)
    recorder.finish(selected)
    assert recorder._calls == calls


def test_a_step_keeps_its_memory_for_the_next() -> None:
    ops = native("generic")
    model = tiny_model(ops, tiny_checkpoint(tiny_config(), seed=3))
    recorded, cache = RecordedForward(ops, model.forward), make_cache(ops)
    recorded(make_batch([(3, 20)], 0), cache)
    memory = recorded._memory
    recorded(make_batch([(0, 9), (5, 2)], 1), cache)
    assert recorded._memory is memory
    recorded(make_batch([(0, 28), (0, 28)], 1), cache)
    assert len(recorded._memory) > len(memory)


def test_a_step_without_memory_leaves_no_places_for_the_next() -> None:
    """The memory of the step before has been given back by then."""
    ops = native("generic")
    model = tiny_model(ops, tiny_checkpoint(tiny_config(), seed=3))
    recorded, cache, batch = RecordedForward(ops, model.forward), make_cache(ops), make_batch([(0, 4)], 0)
    want = recorded(batch, cache)
    first, *_ = recorded._recorder.slots
    units, first.units = first.units, 1 << 50
    with pytest.raises(MemoryError):
        recorded(make_batch([(0, 28)], 0), cache)
    first.units = units
    assert np.array_equal(recorded(batch, cache), want)
    assert len(recorded._memory) >= sum(slot.units for slot in recorded._recorder.slots)
