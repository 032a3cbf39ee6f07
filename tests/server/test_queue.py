"""Who waits and for how long: priorities, full queues, deadlines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.engine.plan import StepPlan
from tests.scripted import Script
from tests.server.running import RunningServer, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def test_the_lower_priority_is_answered_first(intake: Intake) -> None:
    config = EngineConfig(scheduling_policy="priority")
    with running(replace(intake, scheduling_policy="priority"), Script(max_num_seqs=1), config) as server:
        server.gate.open.clear()
        admitted: list[int] = []

        def note(plan: StepPlan) -> None:
            admitted.extend(new.request.priority for new in plan.new_rows)
            server.gate(plan)

        server.runner.on_step = note
        bodies = [{"prompt": "a", "priority": 5}, {"messages": HI, "priority": -1}, {"prompt": ["b"]}]
        answers = []
        for number, body in enumerate(bodies):
            answers.append(server.submit(CHAT if "messages" in body else TEXT, {**body, "max_tokens": 2}))
            server.until(lambda number=number: server.metrics.received == number + 1)
        server.gate.open.set()
        assert [answer.result().status_code for answer in answers] == [200] * 3
        assert admitted == [5, -1, 0, 5]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_priority_without_the_policy_is_refused(server: RunningServer, path: str) -> None:
    response = server.post(path, {"prompt": "a", "messages": HI, "priority": 3})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "priority"
    assert "--scheduling-policy priority" in response.json()["error"]["message"]
    assert server.post(path, {"prompt": "a", "messages": HI, "priority": 0, "max_tokens": 1}).status_code == 200
