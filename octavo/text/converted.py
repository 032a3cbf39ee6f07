"""A tokenizer that was made from another file than tokenizer.json, and what the file or its kind says beside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


@dataclass(frozen=True)
class Converted:
    """`defaults` are keys of tokenizer_config.json, for where that does not have them; `front` the tokens that stand before
    every text, where that is not (only) a BOS."""

    backend: Backend
    defaults: dict[str, Any] = field(default_factory=dict)
    front: tuple[str, ...] = ()
