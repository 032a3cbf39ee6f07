"""ModelScope: the boundary in every run, the package itself against a loopback hub where it is installed (make oracle)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.errors import LoadError
from octavo.weights.hub import resolve_model
from tests.weights.hub_server import HubState, Repository, run_hub
from tests.weights.test_hub import BIG, FILES, GGUFS, WANTED, file_names, resolve_in_child


class NotExistError(Exception):
    """As in modelscope.hub.errors."""


def install_fake(
    monkeypatch: pytest.MonkeyPatch, files: list[dict[str, Any]] | Exception, calls: list[dict[str, Any]]
) -> None:
    """The four modules with the signatures of modelscope."""

    class HubApi:
        def get_model_files(self, model_id: str, revision: str | None, recursive: bool) -> list[dict[str, Any]]:
            calls.append({"list": model_id, "revision": revision, "recursive": recursive})
            if isinstance(files, Exception):
                raise files
            return files

    class ProgressCallback:
        def __init__(self, filename: str, file_size: int) -> None: ...

    def snapshot_download(model_id: str, **options: Any) -> str:
        calls.append({"download": model_id, **options})
        if options.get("local_files_only"):
            raise ValueError("not cached")
        for callback in options["progress_callbacks"]:
            callback("model.safetensors", 10).update(7)
        return "/somewhere"

    modules = {
        "modelscope": {"snapshot_download": snapshot_download},
        "modelscope.hub.api": {"HubApi": HubApi},
        "modelscope.hub.callback": {"ProgressCallback": ProgressCallback},
        "modelscope.hub.errors": {"NotExistError": NotExistError},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope", None)  # as if it were not installed
    with pytest.raises(LoadError, match=r"pip install 'octavo\[modelscope\]'"):
        resolve_model(EngineConfig(model="org/model", hub="modelscope"))


def test_the_package_is_called_with_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    listing = [
        {"Path": "config.json", "Size": 3},
        {"Path": "model.safetensors", "Size": 7},
        {"Path": "README.md", "Size": 90},
    ]
    install_fake(monkeypatch, listing, calls)
    percents: list[float] = []
    config = EngineConfig(model="org/model", hub="modelscope", download_dir="/cache", revision="v1")
    assert resolve_model(config, percents.append) == Path("/somewhere")
    assert calls[0] == {"list": "org/model", "revision": "v1", "recursive": True}
    del calls[1]["progress_callbacks"]
    wanted = ["model.safetensors", "config.json"]
    assert calls[1] == {"download": "org/model", "revision": "v1", "cache_dir": "/cache", "allow_patterns": wanted}
    assert percents == [70.0, 100.0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotExistError("record not found"), "ModelScope has no model org/model.*check the name"),
        (OSError("no wire\nsecond line"), r"org/model is not downloaded yet, and ModelScope cannot be reached \(no wire\)"),
        (OSError(), r"cannot be reached \(OSError\)"),
    ],
)
def test_refusals_are_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    install_fake(monkeypatch, error, [])
    with pytest.raises(LoadError, match=words):
        resolve_model(EngineConfig(model="org/model", hub="modelscope"))


def test_a_forbidden_model_asks_for_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError("403 Forbidden")
    error.response = SimpleNamespace(status_code=403)  # type: ignore[attr-defined]
    install_fake(monkeypatch, error, [])
    with pytest.raises(LoadError, match="set MODELSCOPE_API_TOKEN"):
        resolve_model(EngineConfig(model="org/model", hub="modelscope"))


@pytest.mark.oracle
def test_the_real_package_downloads_resumes_and_refuses(tmp_path: Path) -> None:
    repositories = {
        "org/model": Repository(FILES),
        "org/private": Repository(FILES, private=True),
        "org/gguf": Repository(GGUFS),
    }
    with run_hub(HubState(repositories)) as state:
        state.break_after["model.safetensors"] = 100_000
        first = resolve_in_child(state.endpoint, tmp_path, "org/model", hub="modelscope")
        assert first.error is None
        assert first.path is not None
        assert file_names(first.path) >= WANTED
        assert not file_names(first.path) & {"README.md", "onnx/config.json", "consolidated.safetensors"}
        assert (first.path / "model.safetensors").read_bytes() == BIG
        assert first.percents[-1] == 100.0
        assert state.downloads().count("model.safetensors") == 2

        chosen = resolve_in_child(state.endpoint, tmp_path, "org/gguf:Q8_0", hub="modelscope")
        assert chosen.path is not None
        assert chosen.path.read_bytes() == GGUFS["M-Q8_0.gguf"]
        missing = resolve_in_child(state.endpoint, tmp_path, "org/nothing", hub="modelscope")
        assert "ModelScope has no model org/nothing" in str(missing.error)
        forbidden = resolve_in_child(state.endpoint, tmp_path, "org/private", hub="modelscope")
        assert "set MODELSCOPE_API_TOKEN" in str(forbidden.error)
    down = resolve_in_child("http://127.0.0.1:9", tmp_path, "org/model", hub="modelscope")
    assert (down.path, down.error) == (first.path, None)
    never = resolve_in_child("http://127.0.0.1:9", tmp_path, "org/never", hub="modelscope")
    assert "org/never is not downloaded yet, and ModelScope cannot be reached" in str(never.error)
