"""Small random Llamas of every kind against Transformers' stored logits."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import LoadError
from octavo.kernels.numpy.ops import NumpyOps
from tests.golden.derive_llama import TINY_SEED, load, tiny_prompt
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.tiny import VARIANTS, tiny_checkpoint, tiny_config, tiny_model

GOLDEN = load()["tiny"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_in_one_piece_in_chunks_and_token_by_token(variant: str, backend: str) -> None:
    ops = BACKENDS[backend]()
    model = tiny_model(ops, tiny_checkpoint(tiny_config(**VARIANTS[variant]), TINY_SEED))
    for chunk in (512, 7, 1):
        assert logits_error(logits_of(model, ops, tiny_prompt(), chunk), GOLDEN[variant]) < TOLERANCE, chunk
    ops.close()


def test_c148_the_embedding_may_be_stored_under_the_heads_name() -> None:
    checkpoint = tiny_checkpoint(tiny_config(tie_word_embeddings=True), TINY_SEED)
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors.pop("model.embed_tokens.weight")
    ops = NumpyOps()
    assert logits_error(logits_of(tiny_model(ops, checkpoint), ops, tiny_prompt(), 512), GOLDEN["tied"]) < TOLERANCE


def test_c149_a_tied_head_that_is_stored_as_well_is_left_alone() -> None:
    checkpoint = tiny_checkpoint(tiny_config(tie_word_embeddings=True), TINY_SEED)
    checkpoint.tensors["lm_head.weight"] = np.zeros_like(checkpoint.tensors["model.embed_tokens.weight"])
    ops = NumpyOps()
    assert logits_error(logits_of(tiny_model(ops, checkpoint), ops, tiny_prompt(), 512), GOLDEN["tied"]) < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["FooForCausalLM"]}, "'FooForCausalLM' is not supported; supported: "),
        ({"hidden_act": "relu2"}, "hidden_act 'relu2' is not supported; supported: silu, "),
        (
            {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1.0}},
            "rope type 'spiral' is not supported; supported: default, ",
        ),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 of head_dim 16"),
        ({"partial_rotary_factor": "x"}, "partial_rotary_factor x of head_dim 16"),
        ({"partial_rotary_factor": float("nan")}, "partial_rotary_factor nan of head_dim 16"),
        ({"intermediate_size": 96}, r"model.layers.0.mlp.gate_proj.weight has shape \[112, 64\]"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2.self_attn.q_proj.weight"),
        ({"num_hidden_layers": 1}, "does not use tensors model.layers.1"),
        ({"attention_bias": True}, "no tensor model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_c154_what_does_not_fit_is_refused_in_one_line(changes: dict[str, object], message: str) -> None:
    checkpoint = tiny_checkpoint(tiny_config())
    checkpoint.hf_config = tiny_config(**changes)
    with pytest.raises(LoadError, match=message) as caught:
        tiny_model(NumpyOps(), checkpoint)
    assert "\n" not in str(caught.value)
