"""Mistral (Jiang et al., 2023): Llama, in older versions with a sliding window in every layer."""

from octavo.models.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """The family `MistralForCausalLM` of Transformers; the windows are the configuration's."""
