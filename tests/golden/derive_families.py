"""Derives the golden values of the small random models of all families from Transformers.

    python -m tests.golden.derive_families

writes families.json beside this file; `make oracle` compares live and with the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.families import FAMILIES, Family, random_tensors

FILE = Path(__file__).with_name("families.json")
SEED, LENGTH, OUTPUT_LENGTH = 4, 64, 16
POSITIONS = [0, 1, 15, 16, 40, 63]
SMALLEST_MARGIN = 2e-3  # of the largest logit: between the two most likely ids, at every greedy step


def prompt_of(seed: int) -> list[int]:
    """One of the prompts."""
    prompt: list[int] = np.random.RandomState(seed).randint(3, 160, LENGTH).tolist()
    return prompt


def derive_with_logits(family: Family) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """Shapes, logits at some positions, and a greedy continuation that hangs on no rounding; and all logits [64, v]."""
    from tests.golden.transformers_reference import family_reference, family_shapes, greedy_ids, reference_logits

    shapes = family_shapes(family.reference_config)
    tensors = random_tensors(shapes, SEED)
    model = family_reference(family.reference_config, tensors if family.loaded is None else family.loaded(tensors))
    for seed in range(50):
        prompt = prompt_of(seed)
        logits = reference_logits(model, prompt)
        outputs, margins = greedy_ids(model, [prompt], OUTPUT_LENGTH)
        if margins[0] > SMALLEST_MARGIN * np.abs(logits).max():
            break
    else:
        raise ValueError("every prompt's continuation hangs on rounding")
    rows = {}
    for position in POSITIONS:
        row = logits[position]
        ids = [int(row.argmax()), *range(0, len(row), max(20, len(row) // 10))]
        rows[str(position)] = {"ids": ids, "logits": [round(float(row[token]), 5) for token in ids]}
    largest = round(float(np.abs(logits).max()), 5)
    values = {"shapes": shapes, "prompt_seed": seed, "largest": largest, "rows": rows, "greedy": outputs[0]}
    return values, logits


def load() -> dict[str, Any]:
    """The stored golden values."""
    values: dict[str, Any] = json.loads(FILE.read_text())
    return values


def main() -> None:
    """Write the file, one family a line so that changes can be seen."""
    values = {name: derive_with_logits(family)[0] for name, family in FAMILIES.items()}
    rows = [f'"{name}": {json.dumps(value, separators=(",", ":"))}' for name, value in values.items()]
    FILE.write_text("{" + ",\n".join(rows) + "}\n")


if __name__ == "__main__":
    main()
