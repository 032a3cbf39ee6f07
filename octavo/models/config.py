"""A model's shape, read from config.json (or the same keys made from GGUF metadata)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """The fields that every decoder shares. What only one family needs stays in `raw`, which is config.json itself."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_epsilon: float
    tie_word_embeddings: bool
    dtype: str  # of the checkpoint: float32 | bfloat16 | float16
    rope: dict[str, Any]  # rope_theta and the rope_scaling keys (rope_type, factor, ...), in one place whatever the file's age
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def qkv_heads(self) -> tuple[int, int, int]:
        """(heads, KV heads, head size), as the ops take them."""
        return self.num_heads, self.num_kv_heads, self.head_dim
