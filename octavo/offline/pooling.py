"""`LLM.embed`, `encode`, `classify` and `score`: prompts to the results of a pooling model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from octavo.engine.pooling_intake import Pair, PoolingIntake
from octavo.engine.request import Request, RequestDelta
from octavo.engine.scoring import ScoringJob, TokenLimits, read_texts
from octavo.engine.truncation import Truncation
from octavo.errors import EngineError, RequestError, ValidationError
from octavo.offline.prompts import Prompt, read_prompts
from octavo.offline.session import Job, Session
from octavo.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from octavo.pooling.params import Pooled, PoolingParams
from octavo.text.chat_template import ChatTemplate

Result = PoolingRequestOutput[PoolingOutput]


class PooledCollector:
    """Takes the one delta of a pooling request."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.finished = False
        self._request = request
        self._delta: RequestDelta | None = None

    def add(self, delta: RequestDelta) -> None:
        """Take it."""
        self._delta, self.finished = delta, True

    def output(self) -> Result:
        """What it holds. EngineError where the request failed in the engine."""
        delta = self._delta
        if delta is None or delta.pooled is None:
            raise EngineError((delta.error if delta is not None else None) or "The request failed in the engine.")
        data = _array(delta.pooled)
        return PoolingRequestOutput(
            self.request_id, PoolingOutput(data), self._request.prompt_token_ids, delta.num_cached_tokens
        )


Run = Callable[[list[Job[PooledCollector]]], None]


def pool_prompts(
    session: Session, prompts: Any, params: Any, task: str, tokenization: Mapping[str, Any] | None, run: Run
) -> list[Result]:
    """The results of a task for one prompt or many, in order. ValidationError for the first that cannot be served."""
    read = read_prompts(prompts)
    each = _per_prompt(params, len(read), task)
    return _pool(session, read, each, tokenization, run)


def embed_prompts(
    session: Session, prompts: Any, params: Any, tokenization: Mapping[str, Any] | None, run: Run
) -> list[EmbeddingRequestOutput]:
    """A vector for each prompt. ValidationError as `pool_prompts`, and where the model does not embed."""
    _check_task(session, "embed", "Embedding")
    results = pool_prompts(session, prompts, params, "embed", tokenization, run)
    return [EmbeddingRequestOutput(**_as_list(one, EmbeddingOutput)) for one in results]


def classify_prompts(
    session: Session, prompts: Any, params: Any, tokenization: Mapping[str, Any] | None, run: Run
) -> list[ClassificationRequestOutput]:
    """The probabilities of the classes for each prompt. ValidationError as `pool_prompts`, and where there are none."""
    _check_task(session, "classify", "Classification")
    results = pool_prompts(session, prompts, params, "classify", tokenization, run)
    return [ClassificationRequestOutput(**_as_list(one, ClassificationOutput)) for one in results]


def score_pairs(
    session: Session,
    first: Any,
    second: Any,
    params: Any,
    tokenization: Mapping[str, Any] | None,
    template: Any,
    run: Run,
) -> list[ScoringRequestOutput]:
    """The scores of pairs: one text with each of many, or as many with as many."""
    intake = session.intake
    architecture = intake.model_config.architecture
    texts = [read_texts(value, name, architecture) for value, name in ((first, "data_1"), (second, "data_2"))]
    own = params or PoolingParams()
    if not isinstance(own, PoolingParams):
        raise ValidationError(f"pooling_params must be PoolingParams, got {type(own).__name__}")
    extra = own.extra_kwargs or {}
    limits = TokenLimits.of(extra.get("max_tokens_per_query", 0), extra.get("max_tokens_per_doc", 0), intake.max_model_len)
    job = ScoringJob.of(intake, texts[0], texts[1], limits, _template(session, template))
    asked = PoolingParams(use_activation=own.use_activation if job.is_cross_encoder else None, task=job.task)
    inputs = [one if isinstance(one, Pair) else Prompt(one) for one in job.inputs]
    results = _pool(session, inputs, [asked] * len(inputs), tokenization, run)
    scores = job.scores([result.outputs.data for result in results])
    ids = job.token_ids([result.prompt_token_ids for result in results], _padding(session))
    return [
        ScoringRequestOutput(session.next_id(), ScoringOutput(score), token_ids)
        for score, token_ids in zip(scores, ids, strict=True)
    ]


def _check_task(session: Session, task: str, api: str) -> None:
    pooling = session.intake.pooling
    if pooling is None or task not in pooling.tasks:
        raise ValidationError(
            f"{api} API is not supported by this model. Try converting the model using `--convert {task}`."
        )


def _as_list(one: Result, output: Callable[[list[float]], Any]) -> dict[str, Any]:
    """The fields of a result whose numbers are a list in an `output`."""
    return {**vars(one), "outputs": output(one.outputs.data.tolist())}


def _pool(
    session: Session,
    inputs: Sequence[Prompt | Pair | RequestError],
    params: Sequence[PoolingParams],
    tokenization: Mapping[str, Any] | None,
    run: Run,
) -> list[Result]:
    intake = PoolingIntake.of(session.intake)
    jobs, collectors = [], []
    for i, (one, asked) in enumerate(zip(inputs, params, strict=True)):
        if isinstance(one, RequestError):
            raise one
        name = f"prompts[{i}]" if len(inputs) > 1 else "prompt"
        request = _request(session, intake, one, name, asked, _truncation(tokenization))
        collectors.append(PooledCollector(request))
        jobs.append(Job(request, collectors[-1]))
    run(jobs)
    return [collector.output() for collector in collectors]


def _request(
    session: Session,
    intake: PoolingIntake,
    one: Prompt | Pair,
    name: str,
    params: PoolingParams,
    truncation: Truncation | None,
) -> Request:
    id = session.next_id()
    if isinstance(one, Pair):
        return intake.request(id, one, params, truncation=truncation)
    return intake.request(
        id,
        one.content,
        params,
        name=name,
        add_special_tokens=one.add_special_tokens,
        cache_salt=one.cache_salt,
        truncation=truncation,
    )


def _truncation(keywords: Mapping[str, Any] | None) -> Truncation | None:
    given = dict(keywords or {})
    if given.get("truncate_prompt_tokens") is not None:
        given.setdefault("truncation_side", "right")
    return Truncation.of_keywords(given)


def _per_prompt(params: Any, count: int, task: str) -> list[PoolingParams]:
    """One for all, or one for each, with the task filled in."""
    given = list(params) if isinstance(params, list | tuple) else [params] * count
    if len(given) != count:
        raise ValidationError(f"The lengths of prompts ({count}) and params ({len(given)}) must be the same.")
    return [_with_task(one, task) for one in given]


def _with_task(params: Any, task: str) -> PoolingParams:
    if params is None:
        return PoolingParams(task=task)
    if not isinstance(params, PoolingParams):
        raise ValidationError(f"pooling_params must be PoolingParams, got {type(params).__name__}")
    if params.task not in (None, task):
        raise ValidationError(f"You cannot overwrite param.task={params.task!r} with pooling_task={task!r}!")
    values = {name: getattr(params, name) for name in PoolingParams.__struct_fields__}
    return PoolingParams(**{**values, "task": task})


def _template(session: Session, text: Any) -> ChatTemplate | None:
    if text is None:
        return session.intake.score_template
    if not isinstance(text, str):
        raise ValidationError("chat_template must be the text of a template", parameter="chat_template")
    tokenizer = session.intake.tokenizer
    return ChatTemplate(text, tokenizer.special_tokens if tokenizer else {})


def _padding(session: Session) -> list[int]:
    tokenizer = session.intake.tokenizer
    id = None if tokenizer is None else tokenizer.pad_token_id
    return [] if id is None else [id]


def _array(pooled: Pooled) -> Any:
    return np.frombuffer(pooled.data, "<f4").reshape(pooled.shape).copy()
