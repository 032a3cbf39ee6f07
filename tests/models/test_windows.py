"""Which layers have a sliding window, as config.json and each architecture's rules say it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import LoadError
from octavo.models.config import read_model_config
from tests.models.tiny import TinyCheckpoint, tiny_config

ALL, NONE = (8, 8, 8, 8), (None, None, None, None)


def windows(architecture: str, **changes: Any) -> tuple[int | None, ...]:
    config = tiny_config(architectures=[architecture], num_hidden_layers=4, **changes)
    return read_model_config(TinyCheckpoint(config, {})).layer_windows


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("LlamaForCausalLM", {"sliding_window": 8}, NONE),  # Llama has none, whatever a file says
        ("MistralForCausalLM", {}, (4096,) * 4),
        ("MistralForCausalLM", {"sliding_window": 8, "use_sliding_window": False}, NONE),
        ("MistralForCausalLM", {"sliding_window": None}, NONE),
        ("MistralForCausalLM", {"sliding_window": 8}, ALL),
        ("Phi3ForCausalLM", {"sliding_window": 8}, ALL),
        ("Starcoder2ForCausalLM", {"sliding_window": 8}, ALL),
        ("Qwen2ForCausalLM", {"sliding_window": 8}, NONE),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": False}, NONE),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 8),
        ),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True}, NONE),  # the 29th layer would have one
        ("Qwen3ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, ALL),
        ("SmolLM3ForCausalLM", {"sliding_window": 8, "use_sliding_window": True}, (None, None, None, 8)),
        ("MixtralForCausalLM", {}, NONE),
        ("MixtralForCausalLM", {"sliding_window": 8}, ALL),
        ("Qwen3MoeForCausalLM", {"sliding_window": 8}, NONE),
        ("Qwen3MoeForCausalLM", {"sliding_window": 8, "use_sliding_window": True}, ALL),
        ("Qwen2MoeForCausalLM", {"sliding_window": 8}, NONE),
        ("Qwen2MoeForCausalLM", {"sliding_window": 8, "use_sliding_window": True}, (8, None, 8, None)),
        (
            "Qwen2MoeForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2},
            (8, None, None, None),
        ),
        (
            "Qwen2MoeForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0},
            NONE,
        ),
        ("GptOssForCausalLM", {"sliding_window": 8}, (8, None, 8, None)),
        ("GptOssForCausalLM", {}, (128, None, 128, None)),
        ("Gemma2ForCausalLM", {}, (4096, None, 4096, None)),
        ("Gemma2ForCausalLM", {"sliding_window": None}, NONE),
        ("Gemma2ForCausalLM", {"sliding_window": 8}, (8, None, 8, None)),
        ("Gemma3ForCausalLM", {"sliding_window": 8}, ALL),  # of which the sixth would see everything
        ("Gemma3ForCausalLM", {"sliding_window": 8, "sliding_window_pattern": 3}, (8, 8, None, 8)),
        (
            "Qwen3ForCausalLM",
            {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2},
            (None, 8) * 2,
        ),
    ],
)
def test_windows(architecture: str, changes: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    assert windows(architecture, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 0}, "sliding_window in the model's configuration must be a positive integer, but is 0"),
        ({"sliding_window": "8"}, "sliding_window .* must be a positive integer, but is '8'"),
        ({"layer_types": ["full_attention"]}, "layer_types .* must be a list with one type for each of the 4 layers"),
        ({"layer_types": 4}, "layer_types .* must be a list"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        windows("Qwen2ForCausalLM", **changes)
    assert "\n" not in str(caught.value)
