"""`LLM.generate`, `chat` and `stream`: prompts to answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from octavo.engine.truncation import Truncation
from octavo.errors import RequestError
from octavo.offline.collector import RequestCollector
from octavo.offline.prompts import Prompt, per_prompt, priorities
from octavo.offline.session import Job, Session
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.sampling.params import SamplingParams

logger = logging.getLogger(__name__)


def complete_prompts(
    session: Session,
    prompts: Sequence[Prompt | RequestError],
    params: SamplingParams | Sequence[SamplingParams],
    priority: int | Sequence[int] | None,
    tokenization: Mapping[str, Any] | None,
    run: Callable[[Sequence[Job[RequestCollector]]], None],
) -> list[RequestOutput]:
    """The answers to the prompts, in order; to one that cannot be served an output with its error. RequestError where there
    is no other prompt, ValidationError for arguments that are wrong as a whole."""
    each = per_prompt(params, len(prompts)), priorities(priority, len(prompts))
    cuts = [Truncation.of_keywords(tokenization) for _ in prompts]
    tried = [_prepare(session, *one) for one in zip(prompts, *each, cuts, strict=True)]
    jobs = [one for one in tried if isinstance(one, Job)]
    _report_refused([one for one in tried if isinstance(one, RequestError)], len(jobs))
    run(jobs)
    return [_result(session, *one) for one in zip(prompts, tried, strict=True)]


def stream_prompt(
    session: Session, prompt: Prompt | RequestError, params: SamplingParams
) -> Generator[RequestOutput, None, None]:
    """All that has come so far whenever there is more. ValidationError at once where the prompt cannot be served."""
    return _outputs(session, session.prepare(prompt, params))


def _outputs(session: Session, job: Job[RequestCollector]) -> Generator[RequestOutput, None, None]:
    version = 0
    with closing(session.run([job])) as steps:
        for _ in steps:
            if job.collector.version > version:
                version = job.collector.version
                yield job.collector.output()


def _prepare(
    session: Session,
    prompt: Prompt | RequestError,
    params: SamplingParams,
    priority: int,
    truncation: Truncation | None,
) -> Job[RequestCollector] | RequestError:
    try:
        return session.prepare(prompt, params, priority, truncation)
    except RequestError as error:
        return error


def _result(session: Session, prompt: Prompt | RequestError, tried: Job[RequestCollector] | RequestError) -> RequestOutput:
    if isinstance(tried, Job):
        return tried.collector.output()
    text, ids = (prompt.text, prompt.token_ids) if isinstance(prompt, Prompt) else (None, None)
    nothing = CompletionOutput(0, finish_reason="error")
    return RequestOutput(session.next_id(), text, ids, [nothing], True, error=str(tried))


def _report_refused(refused: list[RequestError], num_jobs: int) -> None:
    if refused and not num_jobs:
        raise refused[0]
    if refused:
        count = len(refused)
        logger.warning("%d of %d prompts cannot be served; the first because: %s", count, count + num_jobs, refused[0])
