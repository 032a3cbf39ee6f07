"""Octavo: a server and library that runs large language models for many users at once, on CPUs first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "PoolingParams", "SamplingParams", "StructuredOutputsParams", "__version__"]

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.pooling.params import PoolingParams
    from octavo.sampling.params import SamplingParams
    from octavo.sampling.structured import StructuredOutputsParams


def __getattr__(name: str) -> Any:
    """Load the exports when first used, so that `import octavo` costs nothing."""
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    if name == "PoolingParams":
        from octavo.pooling.params import PoolingParams

        return PoolingParams
    if name == "SamplingParams":
        from octavo.sampling.params import SamplingParams

        return SamplingParams
    if name == "StructuredOutputsParams":
        from octavo.sampling.structured import StructuredOutputsParams

        return StructuredOutputsParams
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
