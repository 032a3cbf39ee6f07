"""Each rope type against Transformers: its frequencies and factor, for sequences within the trained context and beyond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.layers.rotary import Rotary
from octavo.models.config import read_model_config
from tests.models.tiny import LLAMA3_ROPE, TinyCheckpoint, tiny_config

pytestmark = pytest.mark.oracle
HEAD_DIM, CONTEXT = 32, 512
FACTORS = st.lists(st.floats(1, 60), min_size=HEAD_DIM // 2, max_size=HEAD_DIM // 2)
THETA = st.sampled_from([1000.0, 10000.0, 5e5])
FACTOR = st.sampled_from([1.0, 1.5, 4.0, 40.0])


def optional(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


YARN = optional(
    beta_fast=st.sampled_from([4, 16.0, 32]),
    beta_slow=st.sampled_from([1, 2.0]),
    attention_factor=st.floats(0.5, 2),
    truncate=st.booleans(),
    mscale=st.sampled_from([0.7, 1.0]),
    mscale_all_dim=st.sampled_from([0.7, 1.0]),
)
VARIANTS = st.one_of(
    st.fixed_dictionaries({"rope_type": st.sampled_from(["linear", "dynamic"]), "rope_theta": THETA, "factor": FACTOR}),
    st.builds(
        dict,
        YARN,
        rope_type=st.just("yarn"),
        rope_theta=THETA,
        factor=FACTOR,
        original_max_position_embeddings=st.sampled_from([64, 512]),
    ),
    st.builds(
        dict,
        optional(attention_factor=st.floats(0.5, 2)),
        rope_type=st.just("longrope"),
        rope_theta=THETA,
        short_factor=FACTORS,
        long_factor=FACTORS,
        original_max_position_embeddings=st.sampled_from([64, 512]),
    ),
    st.just(LLAMA3_ROPE),
)


@given(rope=VARIANTS, length=st.sampled_from([32, 64, 65, 512, 800]))
def test_frequencies(rope: dict[str, Any], length: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    keys = {"head_dim": HEAD_DIM, "max_position_embeddings": CONTEXT, "rope_parameters": rope}
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](LlamaConfig(**keys), "cpu", seq_len=length)
    config = replace(read_model_config(TinyCheckpoint(tiny_config(**keys), {})), max_model_len=length)
    positions = np.arange(20)[:, None] * frequencies.numpy().astype(np.float64)
    expected = np.concatenate([np.cos(positions), np.sin(positions)], axis=1) * factor
    np.testing.assert_allclose(Rotary(config).table(20)[:20], expected, atol=2e-5 * max(factor, 1))
