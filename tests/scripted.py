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

import msgspec
import numpy as np

from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.plan import NewRow, RowResult, ScheduledRow, StepPlan
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
    failing_steps: list[int] = []  # steps (from 0) that raise
    exit_at_step: int | None = None  # the process ends with exit code 7 there
    step_seconds: float = 0.0
    start_error: str | None = None  # loading fails with this StartupError
    start_seconds: float = 0.0  # loading takes this long
    num_blocks: int = 64
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 512


def default_token(request: Request, index: int, position: int) -> int:
    """What an unprepared sequence emits at an output position: a fixed function of the prompt, never 0, 1 or 2 (so that a
    small EOS id does not end it), always below 1,000."""
    seed = sum((i + 1) * token for i, token in enumerate(request.prompt_token_ids))
    return 3 + (seed * 31 + index * 17 + position * 7) % 997


def make_request(
    request_id: str, prompt: int | list[int] = 4, max_tokens: int | None = 4, *, eos: tuple[int, ...] = (), **params: object
) -> Request:
    """A request; `prompt` may be its number of tokens. `params` go to SamplingParams."""
    ids = [3 + (i * 13 + len(request_id)) % 900 for i in range(prompt)] if isinstance(prompt, int) else prompt
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return Request(request_id, ids, sampling, time.time(), eos_token_ids=list(eos))


@dataclass(eq=False)
class _Row:
    new: NewRow
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)

    @property
    def request_name(self) -> str:
        """The request id as the client knows it (`AsyncClient` adds "#" and a number)."""
        return self.new.request.request_id.partition("#")[0]

    @property
    def name(self) -> str:
        return f"{self.request_name}/{self.new.index}"


class ScriptedRunner:
    """`Runner` of prepared ids. `on_step` is called with each plan, between its rows' bookkeeping and the
    computation, and may raise. Steps that fail by script have done nothing at all.

    Instead of keys and values its cache holds the token ids and positions that were written; each step reads back what
    attention would read, and fails if a block was overwritten, never written, or belongs to two rows.
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
        self._written = np.full((self.num_blocks * self.script.block_size, 2), -1)  # token id and position in each slot
        self._block_owner: dict[int, _Row] = {}

    def execute(self, plan: StepPlan) -> list[RowResult]:
        """See `Runner`. PlanError for a plan that breaks the rules."""
        self._script_step()
        for row in plan.freed_rows:
            self._free(row)
        for new in plan.new_rows:
            require(new.row not in self.rows, "a new row was freed before")
            self.rows[new.row] = _Row(new, [*new.request.prompt_token_ids, *new.output_token_ids])
        if self.on_step is not None:
            self.on_step(plan)
        scheduled_rows = [scheduled.row for scheduled in plan.scheduled]
        require(len(set(scheduled_rows)) == len(scheduled_rows), "a row is scheduled once")
        return [self._compute(scheduled) for scheduled in plan.scheduled]

    def close(self) -> None:
        """See `Runner`."""
        self.closed = True

    def _script_step(self) -> None:
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if self.script.step_seconds:
            time.sleep(self.script.step_seconds)
        if step == self.script.exit_at_step:
            os._exit(7)
        if step in self.script.failing_steps:
            raise ArithmeticError(f"step {step} fails by script")

    def _free(self, row_number: int) -> None:
        row = self.rows.pop(row_number, None)
        for block in row.blocks if row is not None else ():
            if self._block_owner.get(block) is row:
                del self._block_owner[block]

    def _compute(self, scheduled: ScheduledRow) -> RowResult:
        row = self.rows[scheduled.row]
        self._append_blocks(row, scheduled.new_block_ids)
        start, end = scheduled.start, scheduled.start + scheduled.num_tokens
        require(0 <= start < end <= len(row.tokens), "only known tokens are scheduled")
        require(scheduled.sample == (end == len(row.tokens)), "sampling belongs to the last known token")
        self._write_and_read_back(row, start, end)
        return self._result(row, scheduled, end)

    def _append_blocks(self, row: _Row, block_ids: list[int]) -> None:
        for block in block_ids:
            require(self._block_owner.get(block) is None, "a block belongs to one row")
            self._block_owner[block] = row
        row.blocks += block_ids

    def _write_and_read_back(self, row: _Row, start: int, end: int) -> None:
        block_size = self.script.block_size
        require(len(row.blocks) == -(-end // block_size), "a row has the blocks that its tokens need")
        positions = np.arange(end)
        slots = np.array(row.blocks)[positions // block_size] * block_size + positions % block_size
        expected = np.stack([np.array(row.tokens[:end]), positions], axis=1)
        self._written[slots[start:]] = expected[start:]
        require(np.array_equal(self._written[slots], expected), "the cache holds what the row wrote")

    def _result(self, row: _Row, scheduled: ScheduledRow, end: int) -> RowResult:
        request, index = row.new.request, row.new.index
        result = RowResult(scheduled.row, prompt_logprobs=self._prompt_logprobs(request, scheduled))
        if not scheduled.sample:
            return result
        position = len(row.tokens) - len(request.prompt_token_ids)
        errors = self.script.row_errors
        if position in (errors.get(row.name), errors.get(row.request_name)):
            return RowResult(scheduled.row, error=f"row error by script at output position {position}")
        prepared = self.outputs.get(row.name) or self.outputs.get(row.request_name) or []
        token = prepared[position] if position < len(prepared) else default_token(request, index, position)
        row.tokens.append(token)
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


def scripted_engine(runner: ScriptedRunner, *, enable_chunked_prefill: bool = True) -> Engine:
    """An engine around the runner, with the limits of its script."""
    script = runner.script
    return Engine(
        runner,
        block_size=script.block_size,
        max_num_seqs=script.max_num_seqs,
        max_num_batched_tokens=script.max_num_batched_tokens,
        max_model_len=script.max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
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
    if script.start_error is not None:
        raise StartupError(script.start_error)
    engine = scripted_engine(ScriptedRunner(script=script))
    report(EngineStatus("ready", 100.0, seconds={"loading weights": 0.0}))
    return engine
