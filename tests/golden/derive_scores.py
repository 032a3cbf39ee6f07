"""Derives the log-likelihoods that lm-eval is to find, from Transformers.

    python -m tests.golden.derive_scores SmolLM2-135M-Instruct.Q4_1.gguf

writes scores.json beside this file; `make oracle` derives the values again and compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("scores.json")
QUESTIONS: list[dict[str, Any]] = [
    {"text": "The capital of France is", "choices": ["Paris", "Rome", "the largest river of Asia"], "answer": 0},
    {"text": "Two plus two is", "choices": ["five", "four"], "answer": 1},
    {"text": "Grüße aus München: das Wetter ist heute", "choices": ["schön.", "🙂", "seven"], "answer": 0},
    {"text": "Water boils at 100 degrees", "choices": ["Celsius.", "of separation.", "bananas"], "answer": 0},
    {"text": "def add(a, b):\n    return", "choices": ["a + b", "a, b", "None\n\n\nprint(add(1, 2))"], "answer": 0},
    {"text": "A week has seven days. " * 20 + "So a week has", "choices": ["seven days.", "nine days."], "answer": 0},
]


def derive(smollm2: Path) -> list[list[dict[str, Any]]]:
    """For each choice of each question the sum of its tokens' log-probabilities (nats, float32 weights) behind text and
    space, and whether each of them is the most likely one; `smollm2` is its GGUF file."""
    from tests.golden.transformers_reference import gguf_reference, reference_logprobs

    model, tokenizer = gguf_reference(smollm2)
    scores = []
    for question in QUESTIONS:
        scores.append([])
        for choice in question["choices"]:
            start = len(tokenizer(question["text"]).input_ids)
            ids = tokenizer(f"{question['text']} {choice}").input_ids
            logprobs = reference_logprobs(model, ids)[start - 1 : -1]
            targets = ids[start:]
            total = float(sum(row[id] for row, id in zip(logprobs, targets, strict=True)))
            is_greedy = bool((logprobs.argmax(axis=-1) == targets).all())
            scores[-1].append({"logprob": round(total, 5), "is_greedy": is_greedy, "num_tokens": len(targets)})
    return scores


def load() -> list[list[dict[str, Any]]]:
    """The stored values."""
    values: list[list[dict[str, Any]]] = json.loads(FILE.read_text())
    return values


if __name__ == "__main__":
    FILE.write_text(json.dumps(derive(Path(sys.argv[1]))).replace("], [", "],\n[") + "\n")
