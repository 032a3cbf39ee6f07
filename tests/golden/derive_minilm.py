"""Derives the golden values of the MiniLM tests from Transformers.

    python -m tests.golden.derive_minilm DIRECTORY_OF_ALL_MINILM_L6_V2

writes minilm.json beside this file; `make oracle` derives the values again and compares.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.pooling.small import minilm_cross_encoder
from tests.pooling.texts import PAIRS, texts

FILE = Path(__file__).with_name("minilm.json")
NUM_TEXTS, NUM_STARTS, START = 100, 20, 6


def derive(minilm: Path) -> dict[str, Any]:
    """The first numbers of some vectors, every text's cosine with the first one, and logits of a cross-encoder."""
    from tests.pooling.reference import cross_encoder_logits, sentence_vectors

    vectors = sentence_vectors(minilm, tuple(texts(NUM_TEXTS)))
    with tempfile.TemporaryDirectory() as folder:
        logits = cross_encoder_logits(minilm_cross_encoder(Path(folder), minilm), PAIRS)
    return {
        "starts": [[round(float(x), 7) for x in vector[:START]] for vector in vectors[:NUM_STARTS]],
        "cosines": [round(float(x), 7) for x in vectors @ vectors[0]],
        "logits": [round(float(x), 6) for x in logits[:, 0]],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(derive(Path(sys.argv[1]))) + "\n")
