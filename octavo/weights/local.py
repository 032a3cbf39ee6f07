"""Models on this machine: whether a name is a path, and the one line that says why a path holds no model."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.errors import LoadError
from octavo.weights.json_file import read_json


def local_path(name: str) -> Path | None:
    """The path that `name` is: a directory or file that exists, or the only GGUF file of a directory without config.json.
    None if there is no such path. LoadError if that cannot be told."""
    path = Path(os.path.expanduser(name))  # Path's own raises for a user who does not exist
    try:
        return (_only_gguf_of(path) or path) if name and path.exists() else None
    except OSError as error:
        raise _unreadable(path, error) from None


def check_model_path(path: Path) -> None:
    """LoadError unless this is a directory with a config.json or a .gguf file, which can be read. It looks at no weights."""
    try:
        if not path.exists():
            raise LoadError(f"{path} does not exist")
        if path.is_dir():
            if "config.json" not in (files := sorted(os.listdir(path))):
                raise LoadError(_why_no_model(path, files))
        elif path.suffix != ".gguf":
            raise LoadError(f"{path} is neither a model directory nor a .gguf file")
        with (path / "config.json" if path.is_dir() else path).open("rb"):
            pass
    except OSError as error:
        raise _unreadable(path, error) from None


def _only_gguf_of(path: Path) -> Path | None:
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = list(path.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def _unreadable(path: Path, error: OSError) -> LoadError:
    what = f"{error.filename or path} cannot be read ({error.strerror or error})"
    return LoadError(f"{what}; give a model directory or a .gguf file that this user may read, or a hub id")


def _why_no_model(path: Path, files: list[str]) -> str:
    if "adapter_config.json" in files:
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        return f"{path} is a LoRA adapter and no model; give its base model{f' {base}' if base else ''} instead"
    if gguf := [name for name in files if name.endswith(".gguf")]:
        return f"{path} has no config.json but {', '.join(gguf[:3])}; give the path of the .gguf file itself"
    found = f"it holds {', '.join(files[:4])}{' ...' if len(files) > 4 else ''}" if files else "it is empty"
    return f"{path} is not a model directory: it has no config.json ({found})"
