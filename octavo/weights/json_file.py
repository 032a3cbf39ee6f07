"""JSON files beside a model's weights: configurations, indexes, token lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.errors import LoadError


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object; `{}` for a missing file if `optional`. LoadError otherwise, and for anything else than an object."""
    try:
        text = path.read_bytes()
        value = json.loads(text)
        if b"\\ud" in text.lower():  # half a surrogate pair is no character: no tokenizer or template can take it
            json.dumps(value, ensure_ascii=False).encode()
    except FileNotFoundError:
        if optional:
            return {}
        raise LoadError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value
