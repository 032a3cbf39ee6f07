"""YAML files of options."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.options.configure import configure
from octavo.options.yaml_file import read_yaml


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("o.yaml")


def config_of(file: Path, text: str) -> EngineConfig:
    file.write_text(text)
    return configure(read_yaml(str(file)))


def test_sections_and_flat_keys(file: Path) -> None:
    config = config_of(
        file,
        """
        engine_config: {max_num_batched_tokens: 8192}
        scheduler_config: {policy: priority, preemption_mode: recompute, chunked_prefill_enabled: false}
        model-config:
          max-model-len: 4K
          served_model_name: [a, b]
        server_config: {api_key: one}
        seed: 7
        tensor_parallel_size: 1
        speculative_config: null
        compilation_config: {}
        """,
    )
    assert config == EngineConfig(
        max_num_batched_tokens=8192,
        scheduling_policy="priority",
        enable_chunked_prefill=False,
        max_model_len=4096,
        served_model_name=("a", "b"),
        api_key=("one",),
        seed=7,
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "served_model_name: null\nseed: null\n"])
def test_nothing_given(file: Path, text: str) -> None:
    assert config_of(file, text) == EngineConfig()


def test_keys_without_meaning_are_accepted_with_one_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config_of(file, "max_paddings: 256\nscheduler_config: {use_v2_block_manager: true}")
    assert [record.getMessage() for record in caplog.records] == [
        "ignored, since it has no meaning here: o.yaml: max_paddings, o.yaml: scheduler_config.use_v2_block_manager"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_modle_len: 5", "unknown option o.yaml: max_modle_len; did you mean max_model_len?"),
        ("engine_config: {blocksize: 5}", "unknown option o.yaml: engine_config.blocksize; did you mean block_size?"),
        ("engine_cfg: {block_size: 16}", "unknown section o.yaml: engine_cfg; did you mean engine_config?"),
        ("xyzzy: {block_size: 16}", "unknown option o.yaml: xyzzy"),
        ("block_size: {a: 1}", "o.yaml: block_size takes a value, not a mapping"),
        ("engine_config: {model_config: {seed: 1}}", "o.yaml: engine_config.model_config takes a value, not a mapping"),
        ("seed: 1\nengine_config: {seed: 2}", "o.yaml: engine_config.seed is given twice, the other time as seed"),
        (
            "memory_utilization: 1\ngpu_memory_utilization: 0.5",
            "o.yaml: gpu_memory_utilization is given twice, the other time as memory_utilization",
        ),
        ("block_size: 20", "--block-size must be a multiple of 16, got 20"),
        ("block_size: big", "o.yaml: block_size takes a whole number, got big; for instance 2048, 2k (2000) or 2K (2048)"),
        ("port: null", "--port takes a whole number, got None"),
        ("api_key: [12345]", "--api-key takes text, got 12345"),
        ("tensor_parallel_size: 2", "o.yaml: tensor_parallel_size 2 is not supported by Octavo yet; leave it out or give 1"),
        ("- a\n- b", "--config o.yaml must hold option: value lines, not a list"),
        (
            "seed: 1\nseed: 2",
            '--config o.yaml is not valid YAML: seed is given twice in "<unicode string>"',
        ),
    ],
)
def test_refused(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(file, text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("a: [", "a: b: c", "? {a: 1}\n: 2", "!!python/object:os.system {}", "\x00", "[" * 5000, "port: " + "9" * 5000),
        *("port: 2001-99-01", "port: !!int x", "port: !!float x", "port: !!bool x", "port: !!timestamp x"),
    ],
)
def test_what_is_not_yaml_is_refused_in_one_line(file: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--config o\.yaml is not valid YAML: [^\n]+$"):
        config_of(file, text)


def test_files_that_cannot_be_read(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config o\.yaml cannot be read: No such file or directory$"):
        read_yaml("o.yaml")
    with pytest.raises(ConfigError, match=r"^--config \. cannot be read: Is a directory$"):
        read_yaml(".")
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"^--config o\.yaml cannot be read: it is not UTF-8 text$"):
        read_yaml("o.yaml")
