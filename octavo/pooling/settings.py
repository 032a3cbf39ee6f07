"""How a pooling model answers: found once at the start, known to the engine and to its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SEQUENCE_TASKS = ("embed", "classify")  # one vector for a prompt
TOKEN_TASKS = ("token_embed", "token_classify")  # one for each of its tokens
TASKS = (*SEQUENCE_TASKS, *TOKEN_TASKS)
POOLING_TYPES = ("CLS", "LAST", "MEAN")
ACTIVATIONS = ("identity", "sigmoid", "softmax")


@dataclass(frozen=True)
class Pooling:
    """A pooling model's settings.

    `is_classifier`: its head gives `labels` logits in place of vectors of `size`. `pooling_type`: which hidden states of a
    prompt become its vector: the first (CLS), the last, or the mean of all. `use_activation`: the default of requests:
    whether vectors are scaled to length 1, or `activation` is applied to logits. `dimensions`: to how many numbers vectors
    may be cut (Kusupati et al., 2022): None: no; empty: any.
    """

    pooling_type: str
    size: int
    task: str = "embed"  # of requests that name none
    is_classifier: bool = False
    is_encoder: bool = False
    num_token_types: int = 0  # that tell the texts of a pair apart
    use_activation: bool = True
    activation: str = "softmax"
    labels: tuple[str | None, ...] = ()
    dimensions: tuple[int, ...] | None = None
    default_dimensions: int | None = None
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts put before inputs, by name
    default_prompt: str | None = None  # the name of the one that is put before inputs that ask for none
    lower_case: bool = False
    max_length: int | None = None  # tokens, where the files say less than the model's positions

    @property
    def tasks(self) -> tuple[str, ...]:
        """What requests may ask for."""
        return ("classify", "token_classify") if self.is_classifier else ("embed", "token_embed")

    def describe(self) -> str:
        """For the start-up table."""
        if self.is_classifier:
            return f"{self.task}, {self.size} label{'s' if self.size > 1 else ''} ({self.activation})"
        return f"{self.task}, {self.pooling_type}{', normalised' if self.use_activation else ''}, {self.size} dimensions"

    @property
    def scores(self) -> bool:
        """Whether pairs of texts can be scored: by the cosine of their vectors, or by a head with one label."""
        return not self.is_classifier or len(self.labels) == 1
