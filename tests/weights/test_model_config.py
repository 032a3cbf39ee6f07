"""config.json -> ModelConfig: spellings of all ages, defaults, and nonsense refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import LoadError
from octavo.models.config import ModelConfig, read_model_config
from tests.models.tiny import TinyCheckpoint, tiny_config


def read(generation: dict[str, Any] | None = None, without: tuple[str, ...] = (), **changes: Any) -> ModelConfig:
    config = {key: value for key, value in tiny_config(**changes).items() if key not in without}
    checkpoint = TinyCheckpoint(config, {})
    checkpoint.generation_config = generation or {}
    return read_model_config(checkpoint)


def test_defaults_are_those_of_llama() -> None:
    absent = ("num_key_value_heads", "head_dim", "rope_parameters", "max_position_embeddings", "rms_norm_eps")
    config = read(without=(*absent, "tie_word_embeddings", "eos_token_id", "dtype"))
    assert config.qkv_heads == (4, 4, 16)
    assert (config.max_position_embeddings, config.norm_epsilon) == (2048, 1e-6)
    assert (config.tie_word_embeddings, config.eos_token_ids) == (False, ())
    assert config.rope == {"rope_type": "default", "rope_theta": 10000.0}
    assert config.dtype == "float32"  # the checkpoint's own


def test_null_is_absent() -> None:
    config = read(num_key_value_heads=None, head_dim=None, rope_parameters=None, eos_token_id=None, tie_word_embeddings=None)
    assert config.qkv_heads == (4, 4, 16)


def test_head_dim_need_not_be_hidden_over_heads() -> None:
    assert read(head_dim=20).head_dim == 20
    assert read(head_dim=20, hidden_size=66).hidden_size == 66


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "default", "rope_type": "llama3", **LLAMA3}},
            {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        ),
        (
            {"rope_theta": 1.0, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            {"rope_type": "default", "rope_theta": 5e5},
        ),
        (
            {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}},
            {"rope_type": "default", "rope_theta": 5e5},
        ),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}},
            {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0], "long_factor": [2.0]},
        ),
        (
            {"rope_scaling": {"type": "yarn", "short_factor": [1.0], "long_factor": [2.0]}},
            {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0], "long_factor": [2.0]},
        ),
        (
            {"partial_rotary_factor": 0.5, "rope_scaling": None},
            {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        ),
    ],
)
def test_rope_of_every_age_ends_in_one_place(keys: dict[str, Any], rope: dict[str, Any]) -> None:
    without = () if "rope_parameters" in keys else ("rope_parameters",)
    assert read(without=without, **keys).rope == rope


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
        ({"dtype": "torch.float32"}, "float32"),
        ({"dtype": "bfloat16", "torch_dtype": "float32"}, "bfloat16"),
        ({"dtype": "auto"}, "float32"),
    ],
)
def test_dtype_in_both_spellings(keys: dict[str, Any], dtype: str) -> None:
    assert read(**keys).dtype == dtype


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (2, [2, 32007], (2, 32007)),
        (None, 7, (7,)),
        ([], [], ()),
        (0, None, (0,)),
    ],
)
def test_several_eos_ids_of_both_files(config_eos: Any, generation_eos: Any, expected: tuple[int, ...]) -> None:
    generation = {} if generation_eos is None else {"eos_token_id": generation_eos}
    assert read(generation, eos_token_id=config_eos).eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads .* must be a positive integer, but is 0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers .* must be a positive integer, but is -1"),
        ({"vocab_size": "many"}, "vocab_size .* must be a positive integer, but is 'many'"),
        ({"hidden_size": 64.0}, "hidden_size .* must be a positive integer, but is 64.0"),
        ({"hidden_size": True}, "hidden_size .* must be a positive integer, but is True"),
        ({"intermediate_size": [1, 2]}, "intermediate_size .* must be a positive integer"),
        ({"intermediate_size": None}, "has no intermediate_size"),
        ({"num_key_value_heads": 3}, r"num_attention_heads .* must be a multiple of num_key_value_heads \(3\), but is 4"),
        ({"head_dim": None, "hidden_size": 66}, r"hidden_size .* must be a multiple of num_attention_heads \(4\)"),
        ({"head_dim": 15}, "head_dim .* must be even, but is 15"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps .* must be a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps .* must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings .* must be true or false, but is 'yes'"),
        ({"architectures": []}, r"architectures .* must be a list with the class name.*but is \[\]"),
        ({"architectures": "LlamaForCausalLM"}, "architectures .* must be a list"),
        ({"dtype": "float64"}, "dtype .* must be one of float32, bfloat16, float16, but is 'float64'"),
        ({"dtype": None, "torch_dtype": "float64"}, "torch_dtype .* must be one of .*'float64'"),
        ({"dtype": 16}, "dtype .* must be one of"),
        ({"eos_token_id": "2"}, "eos_token_id .* must be an integer or a list of integers, but is '2'"),
        ({"eos_token_id": [2, None]}, "eos_token_id .* must be"),
        ({"rope_parameters": [1]}, "rope_parameters .* must be an object"),
        ({"rope_parameters": {"rope_type": 3}}, "rope_parameters .* rope_type is a string"),
        (
            {"rope_parameters": {"rope_type": "linear"}},
            r"factor of rope_parameters \(linear\) must be a positive number, but is None",
        ),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor of .* but is '2'"),
        ({"rope_parameters": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 0}}, "low_freq_factor of .* but is 0"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta of .* but is -1"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [], "long_factor": [1]}},
            "short_factor of .*or a list",
        ),
        ({"quantization_config": {}, "head_dim": 0}, "head_dim .* must be a positive integer"),
    ],
)
def test_nonsense_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words) as info:
        read(**changes)
    assert "\n" not in str(info.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    key=st.sampled_from(sorted([*tiny_config(), "rope_scaling", "rope_theta", "torch_dtype", "quantization_config"])),
    value=ANYTHING,
)
def test_any_value_of_any_key_gives_a_configuration_or_one_line(key: str, value: Any) -> None:
    assert "\n" not in complaint(**{key: value})


def complaint(**changes: Any) -> str:
    try:
        read(**changes)
    except LoadError as error:
        return str(error)
    return ""
