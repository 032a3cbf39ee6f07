"""A runner without a model: it emits prepared token ids per sequence, and checks every plan that it is given.

In process:  InProcessClient(scripted_engine(ScriptedRunner({"a": [5, 6, 7]})))
Own process: ProcessClient(script_file(tmp_path, Script(outputs={"a": [5, 6, 7]})), factory=FACTORY)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.cache.reach import NO_BLOCK
from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.plan import BlockMoves, NewRow, RowResult, ScheduledRow, StepPlan
from octavo.engine.request import EngineStatus, Request, TokenLogprobs
from octavo.errors import StartupError
from octavo.sampling.params import SamplingParams

FACTORY = "tests.scripted:build_engine"


class PlanError(BaseException):
    """A plan breaks the rules. Not an Exception, so that the engine does not take it for a failed step and go on."""


def require(condition: bool, rule: str) -> None:
    """PlanError unless the rule is kept."""
    if not condition:
        raise PlanError(rule)


class Script(msgspec.Struct):
    """What a scripted engine does. Sequence names are request ids, or "id/index" for one of n."""

    outputs: dict[str, list[int]] = {}  # after the prepared ids, and for other requests: `default_token`
    row_errors: dict[str, int] = {}  # sequence name -> the output position whose step reports an error for its row
    row_error: str | None = None  # the error's text
    failing_steps: list[int] = []  # steps (from 0) that raise
    exit_at_step: int | None = None  # the process ends with exit code 7 there
    step_seconds: float = 0.0
    stuck_at_step: tuple[int, str] | None = None  # that step lasts until somebody opens the FIFO of this path for writing
    start_error: str | None = None  # loading fails with this StartupError
    start_seconds: float = 0.0  # loading takes this long ...
    start_gate: str | None = None  # ... and until somebody opens this FIFO for writing
    num_blocks: int = 64
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 512
    num_slots: int = 0  # of host memory
    window: int | None = None  # keys that a query sees, its own included


def default_token(request: Request, index: int, position: int) -> int:
    """What an unprepared sequence emits at an output position: a fixed function of the prompt, never 0, 1 or 2 (so that a
    small EOS id does not end it), always below 1,000."""
    seed = sum((i + 1) * token for i, token in enumerate(request.prompt_token_ids))
    return 3 + (seed * 31 + index * 17 + position * 7) % 997


def make_request(
    request_id: str,
    prompt: int | list[int] = 4,
    max_tokens: int | None = 4,
    *,
    eos: tuple[int, ...] = (),
    salt: str | None = None,
    priority: int = 0,
    **params: object,
) -> Request:
    """A request; `prompt` may be its number of tokens. `params` go to SamplingParams."""
    ids = [3 + (i * 13 + len(request_id)) % 900 for i in range(prompt)] if isinstance(prompt, int) else prompt
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return Request(request_id, ids, sampling, time.time(), eos_token_ids=list(eos), cache_salt=salt, priority=priority)


@dataclass(eq=False)
class _Row:
    new: NewRow
    tokens: list[int] = field(default_factory=list)
    histories: list[int] = field(default_factory=list)  # at each token: what its keys and values depend on, in one number
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0

    def __post_init__(self) -> None:
        for token in (*self.new.request.prompt_token_ids, *self.new.output_token_ids):
            self.append(token)

    def append(self, token: int) -> None:
        """One more token, after all before it and under the request's salt."""
        before = self.histories[-1] if self.histories else hash(self.new.request.cache_salt)
        self.tokens.append(token)
        self.histories.append(hash((before, token)))

    @property
    def request_name(self) -> str:
        """The request id as the client knows it (`AsyncClient` adds "#" and a number)."""
        return self.new.request.request_id.partition("#")[0]

    @property
    def name(self) -> str:
        return f"{self.request_name}/{self.new.index}"


NOTHING = -1  # in a place of the cache that was not written


class ScriptedRunner:
    """`Runner` of prepared ids. `on_step` is called with each plan, between its rows' bookkeeping and the
    computation, and may raise. Steps that fail by script have done nothing at all.

    Instead of keys and values its cache holds the token ids that were written, with their positions and what came before
    them, and so do the slots of its host memory. Each step reads back what attention would read, and fails if a block was
    overwritten, never written, holds another prefix than the row's, or is written by one of several rows that hold it.
    With a window only what lies in it is read, and blocks before it are nobody's.
    """

    def __init__(
        self,
        outputs: dict[str, list[int]] | None = None,
        *,
        script: Script | None = None,
        on_step: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self.script = script or Script()
        self.outputs = {**self.script.outputs, **(outputs or {})}
        self.on_step = on_step
        self.num_blocks = self.script.num_blocks
        self.num_steps = 0
        self.closed = False
        self.rows: dict[int, _Row] = {}
        self.num_computed_tokens = 0
        self.num_releases = 0
        self._written = np.full((self.num_blocks, self.script.block_size, 3), NOTHING)  # token id, position and history
        self._host = np.full((self.script.num_slots, self.script.block_size, 3), NOTHING)
        self._holders: list[set[_Row]] = [set() for _ in range(self.num_blocks)]

    def execute(self, plan: StepPlan) -> list[RowResult]:
        """See `Runner`. PlanError for a plan that breaks the rules."""
        self._script_step()
        for row in plan.freed_rows:
            self._free(row)
        for new in plan.new_rows:
            require(new.row not in self.rows, "a new row was freed before")
            self.rows[new.row] = _Row(new)
        for each in self.rows.values():
            self._let_go(each)
        if self.on_step is not None:
            self.on_step(plan)
        scheduled_rows = [scheduled.row for scheduled in plan.scheduled]
        require(len(set(scheduled_rows)) == len(scheduled_rows), "a row is scheduled once")
        self._move(plan.before)
        at_once = self.num_steps % 2 == 1  # or at the very end: the plan must not depend on it
        if at_once:
            self._move(plan.meanwhile)
        for source, target in plan.block_copies:
            self._written[target] = self._written[source]
        for previous, scheduled in zip([None, *plan.scheduled], plan.scheduled, strict=False):
            self._check(scheduled, previous)
            self._append_blocks(self.rows[scheduled.row], scheduled, plan.block_copies)
            self._write(self.rows[scheduled.row], scheduled)
        results = [self._read_back_and_draw(scheduled) for scheduled in plan.scheduled]
        require(not any(self._holders[block] for _, block in plan.meanwhile.ins), "nobody has what is moved in meanwhile")
        if not at_once:
            self._move(plan.meanwhile)
        return results

    def slot(self, number: int) -> memoryview:
        """The bytes of a slot of host memory."""
        return memoryview(self._host[number].reshape(-1)).cast("B")

    def release_cache(self) -> None:
        """See `Runner`."""
        self._written[:] = NOTHING
        self.num_releases += 1

    def close(self) -> None:
        """See `Runner`."""
        self.closed = True

    def _script_step(self) -> None:
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if self.script.step_seconds:
            time.sleep(self.script.step_seconds)
        if self.script.stuck_at_step is not None and step == self.script.stuck_at_step[0]:
            Path(self.script.stuck_at_step[1]).read_bytes()
        if step == self.script.exit_at_step:
            os._exit(7)
        if step in self.script.failing_steps:
            raise ArithmeticError(f"step {step} fails by script")

    def _move(self, moves: BlockMoves) -> None:
        for block, slot in moves.outs:
            self._host[slot] = self._written[block]
        for slot, block in moves.ins:
            self._written[block] = self._host[slot]

    def _free(self, row_number: int) -> None:
        row = self.rows.pop(row_number, None)
        for block in row.blocks if row is not None else ():
            if block != NO_BLOCK:
                self._holders[block].discard(row)

    def _let_go(self, row: _Row) -> None:
        """The blocks before the window of the row's next token may be anybody's."""
        for place in range(min(len(row.blocks), self._first_seen(row.num_computed) // self.script.block_size)):
            if row.blocks[place] != NO_BLOCK:
                self._holders[row.blocks[place]].discard(row)
                row.blocks[place] = NO_BLOCK

    def _first_seen(self, position: int) -> int:
        return 0 if self.script.window is None else max(0, position - self.script.window + 1)

    def _check(self, scheduled: ScheduledRow, previous: ScheduledRow | None) -> None:
        row, end = self.rows[scheduled.row], scheduled.start + scheduled.num_tokens
        require(0 <= scheduled.start <= end <= len(row.tokens), "only known tokens are scheduled")
        require(scheduled.sample == (end == len(row.tokens)), "sampling belongs to the last known token")
        if not scheduled.num_tokens:
            require(previous is not None and previous.sample, "a fork draws from the logits of the row before it")
            require(previous is not None and self.rows[previous.row].histories[:end] == row.histories, "a fork is a copy")

    def _append_blocks(self, row: _Row, scheduled: ScheduledRow, copies: list[tuple[int, int]]) -> None:
        block_ids = scheduled.new_block_ids
        num_shared = 0 if row.blocks else -(-scheduled.start // self.script.block_size)
        num_gone = block_ids.count(NO_BLOCK)
        require(block_ids[:num_gone] == [NO_BLOCK] * num_gone, "what is gone lies at the beginning")
        require(num_gone <= self._first_seen(scheduled.start) // self.script.block_size, "what is seen is there")
        if scheduled.replaces_last:
            replaced = row.blocks.pop()
            self._holders[replaced].discard(row)
            require((replaced, block_ids[0]) in copies, "what replaces a block is its copy")
        new = block_ids[max(num_shared, num_gone) :]
        require(not any(self._holders[block] for block in new), "a new block is nobody else's")
        for block in block_ids[num_gone:]:
            self._holders[block].add(row)
        row.blocks += block_ids

    def _write(self, row: _Row, scheduled: ScheduledRow) -> None:
        block_size, start, end = self.script.block_size, scheduled.start, scheduled.start + scheduled.num_tokens
        require(len(row.blocks) == -(-end // block_size), "a row has the blocks that its tokens need")
        written = row.blocks[start // block_size :] if start < end else []
        require(all(self._holders[block] == {row} for block in written), "a row writes to blocks of its own")
        slots = self._slots(row, start, end)
        self._written[slots] = self._expected(row, start, end)
        self.num_computed_tokens += scheduled.num_tokens
        row.num_computed = end

    def _slots(self, row: _Row, start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Blocks and offsets of the row's tokens [start, end)."""
        places, offsets = np.divmod(np.arange(start, end), self.script.block_size)
        return np.array(row.blocks)[places], offsets

    def _expected(self, row: _Row, start: int, end: int) -> NDArray[np.int64]:
        columns = (row.tokens[start:end], range(start, end), row.histories[start:end])
        return np.array([list(column) for column in columns], np.int64).T

    def _read_back_and_draw(self, scheduled: ScheduledRow) -> RowResult:
        row, end = self.rows[scheduled.row], scheduled.start + scheduled.num_tokens
        start = min(self._first_seen(scheduled.start), end)
        held = self._written[self._slots(row, start, end)]
        require(np.array_equal(held, self._expected(row, start, end)), "the cache holds the row's tokens")
        return self._result(row, scheduled)

    def _result(self, row: _Row, scheduled: ScheduledRow) -> RowResult:
        request, index = row.new.request, row.new.index
        result = RowResult(prompt_logprobs=self._prompt_logprobs(request, scheduled))
        if not scheduled.sample:
            return result
        position = len(row.tokens) - len(request.prompt_token_ids)
        errors = self.script.row_errors
        if position in (errors.get(row.name), errors.get(row.request_name)):
            error = self.script.row_error or f"row error by script at output position {position}"
            return RowResult(error=error)
        prepared = self.outputs.get(row.name) or self.outputs.get(row.request_name) or []
        token = prepared[position] if position < len(prepared) else default_token(request, index, position)
        row.append(token)
        result.token_id = token
        if request.params.logprobs is not None:
            result.logprobs = TokenLogprobs([token], [-float(position + 1)], 1)
        return result

    def _prompt_logprobs(self, request: Request, scheduled: ScheduledRow) -> list[TokenLogprobs] | None:
        """The logprob of the prompt token at position p is -p."""
        if request.params.prompt_logprobs is None:
            return None
        prompt = request.prompt_token_ids
        positions = range(scheduled.start + 1, min(scheduled.start + scheduled.num_tokens + 1, len(prompt)))
        return [TokenLogprobs([prompt[p]], [-float(p)], 1) for p in positions]


def scripted_engine(runner: ScriptedRunner, **options: Any) -> Engine:
    """An engine around the runner, with the limits of its script; `options` are others of `Engine`."""
    script = runner.script
    return Engine(
        runner,
        block_size=script.block_size,
        max_num_seqs=script.max_num_seqs,
        max_num_batched_tokens=script.max_num_batched_tokens,
        max_model_len=script.max_model_len,
        window=script.window,
        **options,
    )


def script_file(folder: Path, script: Script) -> EngineConfig:
    """A configuration whose model is the script, written to a file: for `ProcessClient(config, factory=FACTORY)`."""
    path = folder / "script.json"
    path.write_bytes(msgspec.json.encode(script))
    return EngineConfig(model=str(path))


def build_engine(config: EngineConfig, report: Callable[[EngineStatus], None]) -> Engine:
    """The scripted stand-in for `octavo.engine.build.build_engine`, named by FACTORY."""
    script = msgspec.json.decode(Path(config.model or "").read_bytes(), type=Script)
    report(EngineStatus("loading weights", 50.0))
    time.sleep(script.start_seconds)
    if script.start_gate is not None:
        Path(script.start_gate).read_bytes()
    if script.start_error is not None:
        raise StartupError(script.start_error)
    engine = scripted_engine(ScriptedRunner(script=script))
    report(EngineStatus("ready", 100.0, seconds={"loading weights": 0.0}))
    return engine
