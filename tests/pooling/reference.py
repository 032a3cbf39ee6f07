"""What Transformers says of pooling models, in float32. Needs torch; imported by the oracle's tests and `derive` only."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer


def save_random(folder: Path, model_type: str, *, labels: int = 0, **changes: Any) -> None:
    """A small model with random weights, as Transformers writes it."""
    small = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        **({"num_labels": labels} if labels else {}),
    }
    torch.manual_seed(3)
    kind = AutoModelForSequenceClassification if labels else AutoModel
    kind.from_config(AutoConfig.for_model(model_type, **small, **changes)).to(torch.float32).save_pretrained(folder)


@cache
def sentence_vectors(folder: Path, texts: tuple[str, ...]) -> NDArray[np.float32]:
    """What sentence-transformers gives, 32 texts at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies, at their import
        from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    vectors: NDArray[np.float32] = model.encode(list(texts), batch_size=32, show_progress_bar=False)
    return vectors


def cross_encoder_logits(folder: Path, pairs: list[tuple[str, str]]) -> NDArray[np.float32]:
    """Logits [pairs, labels]."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for first, second in pairs:
        tokens = tokenizer(first, second, return_tensors="pt", padding=False, truncation=False)
        with torch.inference_mode():
            rows.append(model(**tokens).logits[0].numpy())
    return np.stack(rows)


def hidden_states(folder: Path, prompts: list[list[int]]) -> list[NDArray[np.float32]]:
    """Final hidden states [tokens, h] of each prompt."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).last_hidden_state[0].numpy() for prompt in prompts]


def class_logits(folder: Path, prompts: list[list[int]]) -> list[NDArray[np.float32]]:
    """Logits [labels] of each prompt, which is not padded."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0].numpy() for prompt in prompts]
