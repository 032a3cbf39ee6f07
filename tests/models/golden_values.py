"""Comparing with the golden values that tests/golden/derive_llama.py derived."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-4  # of the largest logit


def logits_error(logits: NDArray[np.float32], golden: dict[str, Any]) -> float:
    """The largest difference, relative to the largest logit of the prompt, at the stored positions and ids."""
    differences = [
        np.abs(logits[int(position), row["ids"]] - np.array(row["logits"])).max() for position, row in golden["rows"].items()
    ]
    return float(max(differences)) / float(golden["largest"])
