"""Hub ids, and which files of a repository are needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.errors import LoadError

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?::(?P<tag>[\w.-]+))?")
_TOKENIZER = re.compile(r"tokenizer\.model(\.v\w+)?|[\w.-]+\.tiktoken")
_HUB_FILE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[\w./-]+\.gguf)")


@dataclass(frozen=True)
class HubId:
    """`org/name`, `org/name:Q4_K_M` (the GGUF file with that quantisation) or `org/name/file.gguf`, of one revision."""

    repo: str
    revision: str | None = None
    tag: str | None = None
    file: str | None = None


Select = Callable[[HubId, Sequence[str]], tuple[list[str], str | None]]  # as `select_files`


def parse_hub_id(name: str, revision: str | None = None) -> HubId | None:
    """None for what cannot be a hub id, such as a path."""
    if name.startswith((".", "/")) or ".." in name:
        return None
    if match := _HUB_FILE.fullmatch(name):
        return HubId(match["repo"], revision, file=match["file"])
    match = _HUB_ID.fullmatch(name)
    if match is None or match["repo"].endswith(".gguf"):
        return None
    return HubId(match["repo"], revision, tag=match["tag"])


def select_files(model: HubId, files: Sequence[str]) -> tuple[list[str], str | None]:
    """What to download of a repository's files: (names, the GGUF file among them or None). Safetensors are preferred
    unless a GGUF file is asked for. LoadError if there is nothing, or more than one GGUF file to choose from."""
    ggufs = sorted(name for name in files if name.endswith(".gguf") and "mmproj" not in name)
    top = sorted(name for name in files if "/" not in name)
    weights = [name for name in top if name.endswith(".safetensors") and not name.startswith("consolidated")]
    if "model.safetensors" in weights:
        weights = ["model.safetensors"]
    if model.tag or model.file or (ggufs and not weights):
        gguf = _choose_gguf(model, ggufs)
        return [gguf], gguf
    if "config.json" not in top or not weights:
        raise LoadError(_why_not_servable(model, top))
    return [*weights, *filter(_is_description, files)], None


def select_files_with_code(model: HubId, files: Sequence[str]) -> tuple[list[str], str | None]:
    """Like `select_files`, and the repository's Python code."""
    chosen, gguf = select_files(model, files)
    return [*chosen, *(name for name in files if name.endswith(".py"))] if gguf is None else chosen, gguf


def select_tokenizer_files(model: HubId, files: Sequence[str]) -> tuple[list[str], str | None]:
    """Like `select_files`, without weights; a GGUF file, which cannot be had in part, only if nothing else is there."""
    if model.tag or model.file or not any(map(_is_tokenizer, files)):
        return select_files(model, files)
    return list(filter(_is_description, files)), None


def _is_description(name: str) -> bool:
    """Configuration, tokenizer and templates: everything but weights that serving may need."""
    if "/" in name:
        is_template = name.startswith("additional_chat_templates/") and name.endswith(".jinja")
        return is_template or re.fullmatch(r"\d+_\w+/config\.json", name) is not None  # of sentence-transformers' modules
    return name.endswith((".json", ".jinja")) or name == "merges.txt" or _is_tokenizer(name)


def _is_tokenizer(name: str) -> bool:
    return name in ("tokenizer.json", "tekken.json", "tiktoken.model", "vocab.json") or bool(_TOKENIZER.fullmatch(name))


def _choose_gguf(model: HubId, ggufs: Sequence[str]) -> str:
    chosen: Sequence[str] = ggufs
    if model.file:
        chosen = [name for name in ggufs if name == model.file]
    elif model.tag:
        pattern = re.compile(rf"(^|[-._/]){re.escape(model.tag)}($|[-._/])", re.IGNORECASE)
        chosen = [name for name in ggufs if pattern.search(name.removesuffix(".gguf"))]
    if len(chosen) == 1:
        return chosen[0]
    wanted = model.file or f"GGUF file named {model.tag}"
    reason = f"{len(chosen)} GGUF files fit" if chosen else f"it has no {wanted}"
    listed = ", ".join((chosen or ggufs)[:6]) or "none"
    more = " ..." if len(chosen or ggufs) > 6 else ""
    raise LoadError(f"{model.repo}: {reason}; name one as {model.repo}/FILE.gguf (GGUF files there: {listed}{more})")


def _why_not_servable(model: HubId, top: Sequence[str]) -> str:
    if "adapter_config.json" in top:
        return f"{model.repo} is a LoRA adapter and no model; give its base model instead"
    missing = "safetensors or GGUF files" if "config.json" in top else "config.json"
    found = f"{', '.join(top[:4])}{' ...' if len(top) > 4 else ''}" if top else "nothing"
    return f"{model.repo} has no {missing}, so it cannot be served (it holds {found})"
