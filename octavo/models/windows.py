"""Which layers see only the last positions."""

from __future__ import annotations

from typing import Any

_EVERY_LAYER = ("MistralForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM", "Starcoder2ForCausalLM")
_FROM_A_LAYER_ON = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")  # from max_window_layers, if use_sliding_window
# Architectures in which every n-th layer sees everything, and the others a window: n, if config.json does not say it.
_ALTERNATING = {"Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6, "Gemma3ForConditionalGeneration": 6, "GptOssForCausalLM": 2}


def layer_windows(raw: dict[str, Any], architecture: str, layers: int) -> tuple[int | None, ...]:
    """For each layer how many positions up to its own a token sees (None: all), from config.json."""
    window = raw.get("sliding_window")
    if window is None:
        return (None,) * layers
    types = raw.get("layer_types")
    if types is not None:
        return tuple(window if types[i] == "sliding_attention" else None for i in range(layers))
    return tuple(window if _is_sliding(raw, architecture, i) else None for i in range(layers))


def _is_sliding(raw: dict[str, Any], architecture: str, layer: int) -> bool:
    if raw.get("use_sliding_window") is False:
        return False
    if architecture in _ALTERNATING:
        period = raw.get("sliding_window_pattern") or _ALTERNATING[architecture]
        return bool((layer + 1) % period)
    if architecture == "Qwen3MoeForCausalLM":
        return bool(raw.get("use_sliding_window"))
    if architecture == "Qwen2MoeForCausalLM":
        return bool(raw.get("use_sliding_window")) and layer % 2 == 0 and layer < raw["max_window_layers"]
    if architecture == "SmolLM3ForCausalLM":
        return bool(raw.get("use_sliding_window")) and not rotates(raw, layer)
    if architecture in _FROM_A_LAYER_ON:
        return bool(raw.get("use_sliding_window")) and layer >= raw["max_window_layers"]
    return architecture in _EVERY_LAYER


def rotates(raw: dict[str, Any], layer: int) -> bool:
    """Whether a layer of SmolLM3 rotates queries and keys: a 1 in no_rope_layers (which counts the other way round than its
    name), or all but every fourth."""
    listed = raw.get("no_rope_layers")
    if isinstance(listed, list) and layer < len(listed):
        return bool(listed[layer])
    return bool((layer + 1) % (raw.get("no_rope_layer_interval") or 4))
