"""What Transformers says, in float32. Needs torch and transformers; imported by the oracle's tests and `derive` only."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.models.tiny import TinyCheckpoint


def tiny_reference(checkpoint: TinyCheckpoint) -> Any:
    """Transformers' model with a small random checkpoint's weights."""
    keys = {name: value for name, value in checkpoint.hf_config.items() if name not in ("architectures", "model_type")}
    model = LlamaForCausalLM(LlamaConfig(**keys)).eval()
    load_tensors(model, checkpoint.tensors)
    return model


def family_reference(config: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Any:
    """Transformers' model of a config.json with these tensors; a tied head needs none of its own."""
    model = _random_model(config).eval()
    load_tensors(model, tensors)
    return model


def load_tensors(model: Any, tensors: dict[str, NDArray[Any]]) -> None:
    """Copy all its weights from here. ValueError for one too many or too few; a tied head needs none of its own."""
    found = {name: torch.from_numpy(np.ascontiguousarray(tensor)) for name, tensor in tensors.items()}
    missing, unexpected = model.load_state_dict(found, strict=False)
    if unexpected or set(missing) - _tied(model):
        raise ValueError(f"missing {missing}, unexpected {unexpected}")


def family_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Name -> shape of the tensors that a file of such a model holds."""
    model = _random_model(config)
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items() if name not in _tied(model)}


def _random_model(config: dict[str, Any]) -> Any:
    keys = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **keys), dtype=torch.float32)


def _tied(model: Any) -> set[str]:
    return {"lm_head.weight"} if model.config.tie_word_embeddings else set()


@cache
def gguf_reference(file: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file, read and dequantised by Transformers."""
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@cache
def directory_reference(folder: Path) -> Any:
    """The model of a directory with config.json and safetensors."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_logits(model: Any, token_ids: list[int]) -> NDArray[np.float32]:
    """Logits [tokens, vocabulary] at every position of a prompt."""
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(torch.tensor([token_ids])).logits[0].numpy()
    return logits


def reference_logprobs(model: Any, token_ids: list[int]) -> NDArray[np.float64]:
    """Log-probabilities [tokens, vocabulary] of what follows each token."""
    logits = torch.from_numpy(reference_logits(model, token_ids)).double()
    logprobs: NDArray[np.float64] = logits.log_softmax(dim=-1).numpy()
    return logprobs


def greedy_ids(model: Any, prompts: list[list[int]], count: int) -> tuple[list[list[int]], list[float]]:
    """`count` greedy tokens after each prompt, past any EOS, and how close the two most likely ones ever came."""
    width = max(map(len, prompts))
    batch = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        batch,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    top = torch.stack(output.logits, dim=1).topk(2).values  # [prompts, count, 2]
    margins = (top[..., 0] - top[..., 1]).amin(dim=1)
    return output.sequences[:, width:].tolist(), margins.tolist()
