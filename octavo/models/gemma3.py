"""Gemma 3 (Gemma Team, 2025), the text model; see `octavo.models.gemma2`."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.models.config import ModelConfig
from octavo.models.gemma2 import Gemma2ForCausalLM
from octavo.weights.checkpoint import Weights


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """The family `Gemma3ForCausalLM` of Transformers."""

    soft_caps = (None, None)
    has_head_norms = True


class Gemma3ForConditionalGeneration(Gemma3ForCausalLM):
    """The text model in the files of one that sees as well."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        is_older = weights.has("language_model.model.embed_tokens.weight")
        weights.view("model", "language_model.model" if is_older else "model.language_model")
        for part in ("vision_tower", "multi_modal_projector"):
            weights.ignore(part if is_older else f"model.{part}")
        super().__init__(config, weights, ops)
