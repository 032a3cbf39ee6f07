"""gpt-oss (OpenAI, 2025): experts in each layer, a window in every other one, and a sink in each head's softmax."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import Handle, Ops, Routing
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.moe import MixtureOfExperts, Router
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

_LIMIT = 7.0  # of the activation `clamped_silu`


class GptOssForCausalLM(Decoder):
    """The family `GptOssForCausalLM` of Transformers. Experts are stored as MXFP4, and stay so, or plainly."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        if config.number("swiglu_limit", _LIMIT) != _LIMIT:
            raise LoadError(f"swiglu_limit {config.raw['swiglu_limit']} is not supported; supported: {_LIMIT:g}")
        rotary, bias, experts = Rotary(config), config.flag("attention_bias"), config.size("num_local_experts")
        routing = Routing(config.size("num_experts_per_tok"), normalise=True)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            own, mlp = weights.scope("self_attn"), weights.scope("mlp")
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, output_bias=bias, sinks=True)
            router = Router(mlp.scope("router"), ops, config.hidden_size, experts, routing, bias=True)
            mixture = MixtureOfExperts(router, _experts(config, mlp.scope("experts"), ops, experts), ops)
            return pre_norm_layer(config, weights, ops, attention, mixture)

        super().__init__(config, weights, ops, layer)


def _experts(config: ModelConfig, weights: Weights, ops: Ops, experts: int) -> Handle:
    """Of each the rows of gate and up are stored in turns."""
    hidden, inner, quantization = config.hidden_size, config.intermediate_size, weights.quantization
    gate_up_bias = weights.take("gate_up_proj_bias", (experts, 2 * inner))
    down_bias = weights.take("down_proj_bias", (experts, hidden))
    gate_up, down = [], []
    for matrix, bias in zip(weights.take_matrices("gate_up_proj", (experts, 2 * inner, hidden)), gate_up_bias, strict=True):
        parts, biases = [matrix[::2], matrix[1::2]], [bias[::2], bias[1::2]]
        gate_up.append(ops.linear_weight(parts, biases, quantization=quantization, activation="clamped_silu"))
    for matrix, bias in zip(weights.take_matrices("down_proj", (experts, hidden, inner)), down_bias, strict=True):
        down.append(ops.linear_weight([matrix], [bias], quantization=quantization))
    return ops.expert_weights(gate_up, down)
