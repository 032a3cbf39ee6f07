"""Derives the golden values of the Llama tests from Transformers.

    python -m tests.golden.derive_llama SmolLM2-135M-Instruct.Q4_1.gguf

writes llama.json beside this file; `make oracle` derives the values again and compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden.prompts import CHATS, TEXTS
from tests.models.tiny import VARIANTS, tiny_checkpoint, tiny_config

FILE = Path(__file__).with_name("llama.json")
PROMPT_LENGTH = 512
OUTPUT_LENGTH = 64
POSITIONS = [0, 1, 6, 7, 15, 16, 31, 100, 255, 256, 383, 510, 511]
SMALLEST_MARGIN = 0.01
TINY_SEED = 3


def tiny_prompt() -> list[int]:
    """The prompt of the small random models."""
    prompt: list[int] = np.random.RandomState(5).randint(0, 160, PROMPT_LENGTH).tolist()
    return prompt


def derive(smollm2: Path) -> dict[str, Any]:
    """All golden values; `smollm2` is its GGUF file. ValueError if a prompt's continuation hangs on rounding."""
    return {"tiny": {name: _tiny(changes) for name, changes in VARIANTS.items()}, "smollm2": _smollm2(smollm2)}


def _tiny(changes: dict[str, Any]) -> dict[str, Any]:
    from tests.golden.transformers_reference import reference_logits, tiny_reference

    model = tiny_reference(tiny_checkpoint(tiny_config(**changes), TINY_SEED))
    return _sample_of(reference_logits(model, tiny_prompt()), every=16)


def _smollm2(file: Path) -> dict[str, Any]:
    from tests.golden.transformers_reference import gguf_reference, greedy_ids, reference_logits

    model, tokenizer = gguf_reference(file)
    chats = [[{"role": "user", "content": text}] for text in CHATS]
    prompts = [tokenizer(text).input_ids for text in TEXTS]
    for chat in chats:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompts.append(tokenizer(text).input_ids)
    outputs, margins = greedy_ids(model, prompts, OUTPUT_LENGTH)
    unclear = [text for text, margin in zip(TEXTS + CHATS, margins, strict=True) if margin < SMALLEST_MARGIN]
    if unclear:
        raise ValueError(f"choose other prompts than {unclear}: their continuations hang on rounding")
    long_prompt = (tokenizer("\n\n".join(TEXTS + CHATS)).input_ids * 3)[:PROMPT_LENGTH]
    return {
        "greedy": [{"prompt": prompt, "output": output} for prompt, output in zip(prompts, outputs, strict=True)],
        "prompt": long_prompt,
        "logits": _sample_of(reference_logits(model, long_prompt), every=4096),
    }


def _sample_of(logits: NDArray[np.float32], every: int) -> dict[str, Any]:
    """At some positions the logits of the most likely id and of every n-th one."""
    rows = {}
    for position in POSITIONS:
        row = logits[position]
        ids = [int(row.argmax()), *range(0, len(row), every)]
        rows[str(position)] = {"ids": ids, "logits": [round(float(row[token]), 5) for token in ids]}
    return {"largest": round(float(np.abs(logits).max()), 5), "rows": rows}


def load() -> dict[str, Any]:
    """The stored golden values."""
    values: dict[str, Any] = json.loads(FILE.read_text())
    return values


def main(smollm2: Path) -> None:
    """Write the file, a few values a line so that changes can be seen."""
    text = json.dumps(derive(smollm2), separators=(",", ":"))
    FILE.write_text(text.replace("},", "},\n") + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
