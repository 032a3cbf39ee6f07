"""MiniLM for the tests of this folder, loaded once for each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM


@pytest.fixture(scope="package")
def minilm_llm(minilm: Path) -> Iterator[LLM]:
    """On the native kernels."""
    with LLM(str(minilm), backend="cpu", cpu_threads=2, disable_progress=True) as llm:
        yield llm
