"""Which class serves which architecture. Families are imported only when a checkpoint asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from octavo.errors import LoadError
from octavo.kernels.ops import Array, KVCache, Ops
from octavo.models.config import ModelConfig
from octavo.models.converted import Classifier
from octavo.models.transformers import EXTRA
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights

FAMILIES = {
    "BaiChuanForCausalLM": "octavo.models.baichuan",
    "BaichuanForCausalLM": "octavo.models.baichuan",
    "ChatGLMForConditionalGeneration": "octavo.models.chatglm",
    "ChatGLMModel": "octavo.models.chatglm",
    "DeepseekV2ForCausalLM": "octavo.models.deepseek",
    "DeepseekV3ForCausalLM": "octavo.models.deepseek",
    "GPT2LMHeadModel": "octavo.models.gpt2",
    "GPTNeoXForCausalLM": "octavo.models.gpt_neox",
    "Gemma2ForCausalLM": "octavo.models.gemma2",
    "Gemma3ForCausalLM": "octavo.models.gemma3",
    "Gemma3ForConditionalGeneration": "octavo.models.gemma3",
    "GemmaForCausalLM": "octavo.models.gemma",
    "Glm4ForCausalLM": "octavo.models.glm",
    "GptOssForCausalLM": "octavo.models.gpt_oss",
    "GlmForCausalLM": "octavo.models.glm",
    "GraniteForCausalLM": "octavo.models.granite",
    "InternLM2ForCausalLM": "octavo.models.internlm2",
    "LlamaForCausalLM": "octavo.models.llama",
    "MistralForCausalLM": "octavo.models.mistral",
    "MixtralForCausalLM": "octavo.models.mixtral",
    "OPTForCausalLM": "octavo.models.opt",
    "Olmo2ForCausalLM": "octavo.models.olmo2",
    "Phi3ForCausalLM": "octavo.models.phi3",
    "Qwen2ForCausalLM": "octavo.models.qwen2",
    "Qwen2MoeForCausalLM": "octavo.models.qwen2_moe",
    "Qwen3ForCausalLM": "octavo.models.qwen3",
    "Qwen3MoeForCausalLM": "octavo.models.qwen3_moe",
    "SmolLM3ForCausalLM": "octavo.models.smollm3",
    "Starcoder2ForCausalLM": "octavo.models.starcoder2",
}
"""`architectures` of config.json -> the module that holds a class of that name."""


@dataclass(frozen=True)
class Encoder:
    """A family of encoders: its module, and whether its positions begin behind the padding token's id."""

    module: str
    is_behind_padding: bool = False

    def reserved_positions(self, raw: dict[str, Any]) -> int:
        """How many positions of a model with this config.json no token has."""
        padding = raw.get("pad_token_id", 1)
        return (padding if isinstance(padding, int) else 1) + 1 if self.is_behind_padding else 0


ENCODERS = {
    "BertModel": Encoder("octavo.models.bert"),
    "BertForSequenceClassification": Encoder("octavo.models.bert"),
    "RobertaModel": Encoder("octavo.models.bert", is_behind_padding=True),
    "RobertaForSequenceClassification": Encoder("octavo.models.bert", is_behind_padding=True),
    "XLMRobertaModel": Encoder("octavo.models.bert", is_behind_padding=True),
    "XLMRobertaForSequenceClassification": Encoder("octavo.models.bert", is_behind_padding=True),
}
"""The same for those that see a prompt as a whole, and generate nothing."""


class Model(Protocol):
    """A loaded model. Activations are float32."""

    config: ModelConfig

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """Run the flat batch, storing its keys and values: [r, h] final (normed) hidden states of `batch.logits_rows`."""

    def logits(self, hidden: Array) -> Array:
        """[r, h] of `forward` -> [r, vocabulary], or [r, labels] of a classifier. Apart, so that a caller may take a few
        rows at a time."""


class _Family(Protocol):
    def __call__(self, config: ModelConfig, weights: Weights, ops: Ops) -> Model: ...


def unknown_architecture(architecture: str) -> LoadError:
    """The refusal of one that has no family here."""
    known = ", ".join(sorted([*FAMILIES, *ENCODERS]))
    return LoadError(
        f"architecture {architecture!r} is not supported; supported: {known}. "
        f"If it generates text, Transformers' code may run it: {EXTRA}"
    )


def build_model(config: ModelConfig, weights: Weights, ops: Ops) -> Model:
    """Load the model that `config` describes; constructing it takes every tensor from `weights`.

    LoadError for an unknown architecture, and for tensors that are missing, left over or of the wrong shape.
    """
    encoder = ENCODERS.get(config.architecture)
    module = FAMILIES.get(config.architecture) if encoder is None else encoder.module
    if module is None:
        raise unknown_architecture(config.architecture)
    family = cast(_Family, getattr(import_module(module), config.architecture))
    model = family(config, weights, ops)
    if config.conversion == "classify":
        model = Classifier(model, config, weights, ops)
    weights.finish()
    return model
