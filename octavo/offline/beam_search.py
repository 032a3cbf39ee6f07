"""`LLM.beam_search`: the searches of all prompts, step by step together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.engine.beam_search import Beam, BeamSearch, step_request
from octavo.engine.request import Request, TokenLogprobs
from octavo.errors import EngineError, ValidationError
from octavo.offline.collector import RequestCollector
from octavo.offline.prompts import Prompt
from octavo.offline.session import Job, Session
from octavo.outputs import BeamSearchOutput, BeamSearchSequence, Logprob, LogprobsOnePosition
from octavo.sampling.params import BeamSearchParams
from octavo.text.tokenizer import Tokenizer


def beam_search(
    session: Session, prompts: Sequence[Prompt | ValidationError], params: BeamSearchParams
) -> list[BeamSearchOutput]:
    """The best answers to each prompt. ValidationError for the first prompt that cannot be served."""
    sampling = msgspec.structs.replace(params.sampling(), logprobs=0)
    requests = [session.prepare(prompt, sampling).request for prompt in prompts]
    searches = [BeamSearch.of(request, params.length_penalty) for request in requests]
    while any(search.is_open for search in searches):
        _step(session, list(zip(requests, searches, strict=True)))
    return [
        BeamSearchOutput([_sequence(session, request, beam, params.skip_special_tokens) for beam in search.best()])
        for request, search in zip(requests, searches, strict=True)
    ]


def _step(session: Session, pairs: list[tuple[Request, BeamSearch]]) -> None:
    """One token for every beam of every search."""
    jobs = [[_job(session, request, prompt) for prompt in search.prompts] for request, search in pairs]
    for _ in session.run([job for some in jobs for job in some]):
        pass
    for (_, search), some in zip(pairs, jobs, strict=True):
        if some:
            search.take([_position(job) for job in some])


def _job(session: Session, request: Request, prompt: list[int]) -> Job[RequestCollector]:
    step = step_request(request, session.next_id(), prompt)
    return Job(step, RequestCollector(step, None, None, lambda request_id, index, reason: None))


def _position(job: Job[RequestCollector]) -> TokenLogprobs:
    """What came of a step, as the engine gave it."""
    output = job.collector.output()
    logprobs = output.outputs[0].logprobs
    if not logprobs:
        raise EngineError(output.error or "A step of the beam search ended without a token.")
    ranked = sorted(logprobs[0].items(), key=lambda item: item[1].rank or 0)
    ids, values = [token for token, _ in ranked], [entry.logprob for _, entry in ranked]
    return TokenLogprobs([ids[0], *ids], [values[0], *values], 1)


def _sequence(session: Session, request: Request, beam: Beam, skip_special_tokens: bool) -> BeamSearchSequence:
    tokenizer = session.intake.tokenizer
    tokens = [*request.prompt_token_ids, *beam.token_ids]
    positions = [_shown(tokenizer, position) for position in beam.logprobs]
    text = None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens)
    return BeamSearchSequence(tokens, positions, beam.logprob, text, beam.finish_reason, beam.stop_reason)


def _shown(tokenizer: Tokenizer | None, position: TokenLogprobs) -> LogprobsOnePosition:
    texts = {token: None if tokenizer is None else tokenizer.decode([token], False) for token in position.token_ids}
    return {token: Logprob(value, rank, texts[token]) for token, (value, rank) in position.ranked().items()}
