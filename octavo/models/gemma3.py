"""Gemma 3 (Gemma Team, 2025), the text model; see `octavo.models.gemma2`."""

from octavo.models.gemma2 import Gemma2ForCausalLM


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """The family `Gemma3ForCausalLM` of Transformers."""

    soft_caps = (None, None)
    has_head_norms = True
