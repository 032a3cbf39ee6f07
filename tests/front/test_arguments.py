"""Command lines: every spelling, every refusal, and flag before YAML before default."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli.arguments import parse_arguments
from octavo.config import OPTIONS, EngineConfig
from octavo.errors import ConfigError
from octavo.options import vllm
from octavo.options.configure import FIELD_NAMES
from octavo.options.description import Option


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("m", {"model": "m"}),
        ("--model m", {"model": "m"}),
        ("m --model m", {"model": "m"}),
        ("m --max-model-len=25.6k", {"model": "m", "max_model_len": 25600}),
        ("--max_model_len 1k", {"max_model_len": 1000}),
        ("--max-model_len 1K", {"max_model_len": 1024}),
        ("--max-model-len 1.5K", {"max_model_len": 1536}),
        ("--max-model-len auto", {"max_model_len": -1}),
        ("--max-model-len -1", {"max_model_len": "auto"}),
        ("--kv-cache-memory-bytes 4G", {"kv_cache_memory_bytes": 4 * 2**30}),
        ("--gpu-memory-utilization .5", {"memory_utilization": 0.5}),
        ("--memory_utilization 0.5", {"memory_utilization": 0.5}),
        ("--no-enable-chunked-prefill", {"enable_chunked_prefill": False}),
        ("--no_enable_chunked_prefill", {"enable_chunked_prefill": False}),
        ("--enable-chunked-prefill", {}),
        ("--served-model-name a b --port 80", {"served_model_name": ("a", "b"), "port": 80}),
        ("--api-key a --api-key b", {"api_key": ("a", "b")}),
        ("--max-logprobs -1 --seed -3", {"max_logprobs": -1, "seed": -3}),
        ("--dtype float", {"dtype": "float32"}),
        ("--seed none", {}),
        ("-tp 1 -pp 1 --data-parallel-size 1 --swap-space 0.0 --tokenizer-mode auto m", {"model": "m", "swap_space": 0.0}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--prefix-caching-hash-algo sha256 --quantization None --hf-overrides {}", {}),
        ("--port 1 --port 2", {"port": 2}),
        ("-- --odd-model", {"model": "--odd-model"}),
    ],
)
def test_accepted(line: str, expected: dict[str, Any]) -> None:
    assert parse_arguments(line.split()) == EngineConfig(**expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--max-modle-len 5", "unknown option --max-modle-len; did you mean --max-model-len?"),
        ("--gpu_memory_utilisation 5", "unknown option --gpu-memory-utilisation; did you mean --gpu-memory-utilization?"),
        ("--xyzzy", "unknown option --xyzzy"),
        ("--max-model", "unknown option --max-model; did you mean --max-model-len?"),
        ("--port", "--port: expected one argument"),
        ("--port http", "--port takes a whole number, got http; for instance 2048, 2k (2000) or 2K (2048)"),
        (
            "--max-model-len 1.3K",
            "--max-model-len takes a whole number, got 1.3K; for instance 2048, 2k (2000) or 2K (2048)",
        ),
        ("--max-model-len -2", "--max-model-len must be at least 1, or auto (-1), got -2"),
        ("--max-num-seqs auto", "--max-num-seqs takes a whole number, got auto; for instance 2048, 2k (2000) or 2K (2048)"),
        ("--memory-utilization lots", "--memory-utilization takes a number, got lots"),
        ("--device cuda", "--device must be one of auto, cpu, got cuda"),
        ("a b", "unrecognized arguments: b"),
        ("a --model b", "--model b and the model a were both given; give one"),
        ("-tp 2", "--tensor-parallel-size 2 is not supported by Octavo yet; leave it out or give 1"),
        ("--cpu-offload-gb 4", "--cpu-offload-gb 4 is not supported by Octavo yet; leave it out or give 0"),
        ("--enable-lora", "--enable-lora is not supported by Octavo yet; leave it out"),
        ("--lora-modules a=b c=d", "--lora-modules ['a=b', 'c=d'] is not supported by Octavo yet; leave it out"),
        ("--hf-overrides.rope_theta 3", "--hf-overrides.rope-theta is not supported by Octavo yet; leave it out"),
    ],
)
def test_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arguments(line.split())
    assert str(caught.value) == message


def test_names_without_meaning_are_accepted_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = parse_arguments(["m", "--max-paddings", "256", "--worker-use-ray"])
    assert config == EngineConfig(model="m")
    assert [record.getMessage() for record in caplog.records] == [
        "ignored, since it has no meaning here: --max-paddings, --worker-use-ray"
    ]


def test_trust_remote_code_says_that_nothing_is_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_arguments(["--trust-remote-code"]).trust_remote_code
    assert [record.getMessage() for record in caplog.records] == [
        "--trust-remote-code: Octavo's own model code runs none of the model repository's (see --model-impl)"
    ]


def test_flags_go_before_the_file_and_the_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("model: from-file\nport: 1\nhost: '::1'\ngpu-memory-utilization: 0.3\n")
    config = parse_arguments(["--config", str(file), "--port", "2", "--memory-utilization", "0.4"])
    assert config == EngineConfig(model="from-file", port=2, host="::1", memory_utilization=0.4)
    assert parse_arguments(["other", "--config", str(file)]).model == "other"


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert [option.flag for option in OPTIONS.values() if option.flag not in shown] == []
    assert "--tensor-parallel-size" not in shown
    assert [group for group in ("\nmodel:", "\nengine:", "\nHTTP server:") if group not in shown] == []


def test_vllm_tables_and_options_do_not_overlap() -> None:
    assert not set(vllm.NEUTRAL_VALUES) & set(FIELD_NAMES)
    assert not set(vllm.RETIRED) & (set(FIELD_NAMES) | set(vllm.NEUTRAL_VALUES))
    assert set(vllm.SHORT_FLAGS.values()) | vllm.LISTS <= set(vllm.NEUTRAL_VALUES)


def _values(option: Option) -> st.SearchStrategy[Any]:
    if option.choices:
        return st.sampled_from(option.choices)
    if option.type is bool:
        return st.booleans()
    if option.type is str:
        words = st.from_regex(r"[a-z_][a-z0-9_/.]{0,8}", fullmatch=True)
        return st.lists(words, min_size=1, max_size=3).map(tuple) if option.many else words
    if option.type is float:
        return st.floats(0.01, 1.0)
    multiple = option.metadata["multiple_of"] or 1
    return st.integers(1, 60000).map(lambda number: number * multiple)


def _flags(option: Option, value: Any) -> list[str]:
    if option.type is bool:
        return [option.flag if value else "--no-" + option.flag[2:]]
    return [option.flag, *map(str, value if option.many else [value])]


def _outcome(make: Callable[[], EngineConfig]) -> EngineConfig | str:
    try:
        return make()
    except ConfigError as refusal:
        return str(refusal)


@given(st.fixed_dictionaries({}, optional={name: _values(option) for name, option in OPTIONS.items()}))
def test_every_config_can_be_said_in_flags(values: dict[str, Any]) -> None:
    line = [word for name, value in values.items() for word in _flags(OPTIONS[name], value)]
    assert _outcome(lambda: parse_arguments(line)) == _outcome(lambda: EngineConfig(**values))


_WORDS = st.one_of(
    st.sampled_from([flag for option in OPTIONS.values() for flag in option.spellings]),
    st.sampled_from([*vllm.NEUTRAL_VALUES, *vllm.RETIRED]).map(lambda name: "--" + name),
    st.sampled_from(["-tp", "1", "0", "auto", "-1", "1k", "--", "-", "=", "--=", "--port=", "true", "{}"]),
    st.text(max_size=6),
)


@given(st.lists(_WORDS.filter(lambda word: not word.startswith("-h")), max_size=6))
def test_any_command_line_is_taken_or_refused(words: list[str]) -> None:
    outcome = _outcome(lambda: parse_arguments(words))
    assert isinstance(outcome, EngineConfig) or outcome
