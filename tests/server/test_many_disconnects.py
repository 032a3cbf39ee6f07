"""Clients that leave at random times, by the hundred: nothing of them stays, and nobody else notices."""

from __future__ import annotations

import gc
from typing import Any

import psutil
import pytest

from octavo.engine.intake import Intake
from octavo.engine.plan import StepPlan
from tests.scripted import Script, ScriptedRunner
from tests.server.leavers import GOLDEN, TEXT, Leavers
from tests.server.running import RunningServer, running


class Streams(dict[str, Any]):
    """The streams of an AsyncClient. `gone` are the engine's ids of those that nobody reads any more, with the number of
    steps begun then."""

    def __init__(self, runner: ScriptedRunner) -> None:
        self.gone: dict[str, int] = {}
        self._runner = runner

    def __delitem__(self, request_id: str) -> None:
        self.gone[self[request_id].key] = self._runner.num_steps
        super().__delitem__(request_id)


class Spy:
    """Watches that nothing is computed any more of a request that was given up. `given_up` are the engine's ids of those,
    with the number of steps begun when it was told; the step that is being planned at that moment may still have them. It is
    told in the same breath in which its stream goes, which may take another step or two when the machine is busy."""

    def __init__(self, server: RunningServer) -> None:
        self.given_up: dict[str, int] = {}
        self.computed_later: list[str] = []
        self._runner = server.runner
        self._streams = server.state.client._streams = Streams(server.runner)
        server.runner.on_step = self._look
        abort = server.client.abort

        def note(request_id: str, index: int | None = None, reason: str = "abort") -> None:
            abort(request_id, index, reason)
            if index is None:
                self.given_up[request_id] = self._runner.num_steps

        server.client.abort = note  # type: ignore[method-assign]

    def _look(self, plan: StepPlan) -> None:
        now = self._runner.num_steps
        for scheduled in plan.scheduled:
            request_id = self._runner.rows[scheduled.row].new.request.request_id
            if now > self.given_up.get(request_id, now) + 1 or now > self._streams.gone.get(request_id, now) + 5:
                self.computed_later.append(request_id)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.nightly)])
def test_c121_clients_that_leave_at_random_times_leave_nothing_behind(intake: Intake, count: int) -> None:
    with running(intake, Script(num_blocks=160, max_num_seqs=24, step_seconds=0.001)) as server:
        golden = server.post(TEXT, GOLDEN).json()["choices"][0]["token_ids"]
        spy = server.call(lambda: Spy(server))
        address = server.listener.getsockname()[:2]
        process = psutil.Process()
        Leavers(address, 30, 0.1).run()  # whatever is only made once
        server.until(server.idle)
        gc.collect()
        files, memory = process.num_fds(), process.memory_info().rss
        leavers = Leavers(address, count, 0.3)
        leavers.run()
        server.until(server.idle)
        assert leavers.stayed == [golden] * (count // 10)
        assert len(spy.given_up) > count // 10, "many leave while the engine works for them"
        assert spy.computed_later == []
        assert server.integrity()["held"] == 0
        server.until(lambda: not server.state.running)
        assert server.state.admission.counts() == {"sequences": 0, "prompt_tokens": 0}
        assert not server.call(lambda: server.state.client._streams)
        assert server.post(TEXT, GOLDEN).json()["choices"][0]["token_ids"] == golden
        assert len(server.runner.rows) <= 1, "rows are given back: the last step freed all but its own"
        gc.collect()
        assert process.num_fds() <= files
        assert process.memory_info().rss < memory + 20 * 2**20
