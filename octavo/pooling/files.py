"""What the files that sentence-transformers writes beside a model say of pooling."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.weights.json_file import read_json

_MODES = {
    "pooling_mode_cls_token": "CLS",
    "pooling_mode_mean_tokens": "MEAN",
    "pooling_mode_lasttoken": "LAST",
}
_NEWER_MODES = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


@dataclass(frozen=True)
class PoolingFiles:
    """`modules.json` and what belongs to it. `pooling_type` is None where there is no pooling module."""

    pooling_type: str | None = None
    normalises: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    lower_case: bool = False
    max_length: int | None = None


def read_pooling_files(directory: Path) -> PoolingFiles | None:
    """None where the directory has no modules.json (or is a GGUF file). LoadError names a module, or a way of pooling, that
    there is not here."""
    modules = _read_modules(directory / "modules.json") if directory.is_dir() else None
    if modules is None:
        return None
    own = read_json(directory / "config_sentence_transformers.json", optional=True)
    encoder = _read_encoder(directory)
    prompts = own.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise LoadError(f"{directory}: prompts of config_sentence_transformers.json must map names to texts")
    default = own.get("default_prompt_name")
    if default is not None and not (isinstance(default, str) and default in prompts):
        raise LoadError(f"{directory}: default_prompt_name {default!r} is none of the prompts")
    pooling_type, normalises = None, False
    for kind, folder in modules:
        if kind == "Pooling":
            pooling_type = _pooling_type(directory / folder / "config.json", has_prompts=any(prompts.values()))
        elif kind == "Normalize":
            normalises = True
        elif kind != "Transformer":
            raise LoadError(
                f"{directory}: modules of type {kind} are not supported; supported: Transformer, Pooling, Normalize"
            )
    length = encoder.get("max_seq_length")
    return PoolingFiles(
        pooling_type,
        normalises,
        prompts,
        default,
        bool(encoder.get("do_lower_case", False)),
        length if isinstance(length, int) and length > 0 else None,
    )


def _read_modules(file: Path) -> list[tuple[str, str]] | None:
    """(type without its package, folder) of each."""
    try:
        modules = json.loads(file.read_bytes())
        if not all(isinstance(module["path"], str) for module in modules):
            raise TypeError("a path is no string")
        return [(module["type"].rpartition(".")[2], module["path"]) for module in modules]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(f"{file} must be a list of modules, each with a type and a path: {error}") from None


def _read_encoder(directory: Path) -> dict[str, Any]:
    for kind in _KINDS:
        file = directory / f"sentence_{kind}_config.json"
        if file.exists():
            return read_json(file)
    return {}


def _pooling_type(file: Path, *, has_prompts: bool) -> str:
    config = read_json(file)
    if config.get("include_prompt") is False and has_prompts:
        raise LoadError(f"{file}: include_prompt false is not supported")
    newer = config.get("pooling_mode")
    if newer is not None:
        chosen = [str(newer)]
        found = [_NEWER_MODES[mode] for mode in chosen if mode in _NEWER_MODES]
    else:
        chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
        found = [_MODES[name] for name in chosen if name in _MODES]
    if len(chosen) != 1 or not found:
        raise LoadError(
            f"{file}: pooling by {' and '.join(chosen) or 'nothing'} is not supported; supported: {', '.join(_MODES)}"
        )
    return found[0]
