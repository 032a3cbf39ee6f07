"""Llama against Transformers, live."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.numpy.ops import NumpyOps
from tests.models.driver import logits_of
from tests.models.tiny import VARIANTS, TinyCheckpoint, tiny_checkpoint, tiny_config, tiny_model

pytestmark = pytest.mark.oracle


def transformers_logits(checkpoint: TinyCheckpoint, token_ids: list[int]) -> np.ndarray:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    keys = {name: value for name, value in checkpoint.hf_config.items() if name not in ("architectures", "model_type")}
    model = LlamaForCausalLM(LlamaConfig(**keys)).eval()
    tensors = {name: torch.from_numpy(tensor) for name, tensor in checkpoint.tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].numpy()


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_models(variant: str) -> None:
    checkpoint = tiny_checkpoint(tiny_config(**VARIANTS[variant]), seed=3)
    token_ids = np.random.RandomState(5).randint(0, 160, 512).tolist()
    expected = transformers_logits(checkpoint, token_ids)
    ops = NumpyOps()
    model = tiny_model(ops, checkpoint)
    for chunk in (512, 7, 1):
        error = np.abs(logits_of(model, ops, token_ids, chunk) - expected).max() / np.abs(expected).max()
        print(variant, chunk, error, np.abs(expected).max())
        assert error < 1e-4, (chunk, error)
