"""The packaged model against Transformers, which reads GGUF by code of its own and safetensors by the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.kernels.numpy.ops import NumpyOps
from octavo.models.config import read_model_config
from octavo.weights.loader import open_checkpoint
from tests.tools.write_safetensors import smollm2_directory

pytestmark = pytest.mark.oracle


def test_tensors_and_configuration_are_those_of_transformers_own_reader(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype="float32")
    checkpoint, ops = open_checkpoint(smollm2), NumpyOps()
    expected = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert checkpoint.shapes() == {name: tensor.shape for name, tensor in expected.items()}
    for name, tensor in expected.items():
        np.testing.assert_array_equal(checkpoint.read(name, np.dtype(np.float32), ops), tensor, err_msg=name)
    config = read_model_config(checkpoint)
    assert config.qkv_heads == (model.config.num_attention_heads, model.config.num_key_value_heads, model.config.head_dim)
    assert config.norm_epsilon == pytest.approx(model.config.rms_norm_eps, rel=1e-6)
    assert config.rope["rope_theta"] == model.config.rope_parameters["rope_theta"]
    assert config.tie_word_embeddings == model.config.tie_word_embeddings


@pytest.mark.parametrize(("dtype", "shards"), [("float32", 1), ("bfloat16", 3)])
def test_the_written_directory_is_a_model_to_transformers(smollm2: Path, dtype: str, shards: int) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = smollm2_directory(dtype, shards)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])

    checkpoint, ops = open_checkpoint(directory), NumpyOps()
    wanted = np.dtype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
    name = "model.layers.7.self_attn.q_proj.weight"
    tensor = model.state_dict()[name].float().numpy()
    found = checkpoint.read(name, wanted, ops)
    assert not found.flags.owndata
    np.testing.assert_array_equal(found.astype(np.float32), tensor)
    assert read_model_config(checkpoint).dtype == dtype
