"""`PoolingParams`: what is asked of a pooling model for one prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.errors import ValidationError
from octavo.pooling.settings import TASKS, TOKEN_TASKS, Pooling
from octavo.sampling.keywords import NamedFields

_VALID = {
    "embed": ["dimensions", "use_activation"],
    "token_embed": ["dimensions", "use_activation"],
    "classify": ["use_activation"],
    "token_classify": ["use_activation"],
}
_UNSUPPORTED = ("step_tag_id", "returned_token_ids", "late_interaction_params", "late_chunking_params")


class PoolingParams(msgspec.Struct, omit_defaults=True, metaclass=NamedFields):
    """One prompt's parameters, under vLLM's names. None is the model's default.

    `use_activation`: scale vectors to length 1, or apply the model's activation to logits. `dimensions`: keep so many
    numbers of a vector. `task`: embed, classify, token_embed or token_classify. `extra_kwargs` may have max_tokens_per_query
    and max_tokens_per_doc, for `LLM.score`. Raises ValidationError for a task that there is none of.
    """

    use_activation: bool | None = None
    dimensions: int | None = None
    task: str | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Any = None
    late_chunking_params: Any = None
    extra_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in _UNSUPPORTED:
            if getattr(self, name) is not None:
                raise ValidationError(f"{name} is not supported; leave it out", parameter=name)
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if getattr(self, name) not in (None, True, False):
                raise ValidationError(f"{name} must be true or false, got {getattr(self, name)!r:.60}", parameter=name)
        if self.task is not None and self.task not in TASKS:
            raise ValidationError(f"task must be one of {', '.join(TASKS)}, got {self.task!r:.60}", parameter="task")


class Pooled(msgspec.Struct, frozen=True, array_like=True):
    """What became of one prompt: float32 numbers, little-endian, in rows of the last of `shape`."""

    data: bytes
    shape: list[int]


class PoolingWork(msgspec.Struct, frozen=True, array_like=True):
    """One checked request of a pooling model, as the engine carries it out."""

    task: str
    use_activation: bool
    dimensions: int | None = None
    second_text: int | None = None  # of a pair: the first token of its second text's type
    needs_all: bool = False  # of the prompt's hidden states: what is computed already does not do

    @property
    def per_token(self) -> bool:
        """Whether each token has a result of its own."""
        return self.task in TOKEN_TASKS


def resolve(params: PoolingParams, pooling: Pooling, model: str) -> PoolingWork:
    """What the parameters mean for a model. ValidationError, in vLLM's words where it has some, for a task that it does not
    serve, and for parameters that the task or the model does not have."""
    task = params.task or pooling.task
    if task not in pooling.tasks:
        raise ValidationError(f"Unsupported task: {task!r} Supported tasks: {pooling.tasks}", parameter="task")
    if params.dimensions is not None and "dimensions" not in _VALID[task]:
        raise ValidationError(
            f"Task {task} only supports {_VALID[task]} parameters, does not support ['dimensions'] parameters",
            parameter="dimensions",
        )
    dimensions = params.dimensions
    if dimensions is not None:
        _check_dimensions(dimensions, pooling, model)
    elif "dimensions" in _VALID[task]:
        dimensions = pooling.default_dimensions
    return PoolingWork(
        task=task,
        use_activation=pooling.use_activation if params.use_activation is None else params.use_activation,
        dimensions=dimensions,
        needs_all=task in TOKEN_TASKS or pooling.pooling_type != "LAST" or bool(params.skip_reading_prefix_cache),
    )


def _check_dimensions(dimensions: Any, pooling: Pooling, model: str) -> None:
    if type(dimensions) is not int:
        raise ValidationError(f"dimensions must be an integer, got {dimensions!r:.60}", parameter="dimensions")
    if dimensions < 1:
        raise ValidationError("Dimensions must be greater than 0", parameter="dimensions", value=dimensions)
    if dimensions > pooling.size:
        text = f"dimensions must be at most {pooling.size}, which the model's vectors have"
        raise ValidationError(text, parameter="dimensions", value=dimensions)
    if dimensions == pooling.size:
        return
    if pooling.dimensions is None:
        raise ValidationError(
            f'Model "{model}" does not support matryoshka representation, changing output dimensions will lead to poor '
            "results.",
            parameter="dimensions",
        )
    if pooling.dimensions and dimensions not in pooling.dimensions:
        raise ValidationError(
            f'Model "{model}" only supports {list(pooling.dimensions)} matryoshka dimensions, use other output dimensions '
            "will lead to poor results.",
            parameter="dimensions",
        )
