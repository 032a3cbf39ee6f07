"""What is asked of a model that was just loaded, and what --quantization may say of a quantized one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.planning import plan_model
from octavo.engine.request import EngineStatus, Request
from octavo.engine.self_check import check_model
from octavo.errors import ConfigError, LoadError
from octavo.kernels.numpy.ops import NumpyOps
from octavo.sampling.params import SamplingParams
from tests.models.tiny import TinyCheckpoint, tiny_checkpoint, tiny_config, tiny_model
from tests.weights.quantized_files import Written, write_quantized
from tests.weights.test_quantized_checkpoints import FORMATS


def checked(checkpoint: TinyCheckpoint) -> None:
    ops = NumpyOps()
    check_model(tiny_model(ops, checkpoint), ops.kv_cache(2, 2, 16, 2, 16, np.dtype(np.float32)), Path("tiny"))


def test_a_sound_model_passes() -> None:
    checked(tiny_checkpoint(tiny_config()))


@pytest.mark.parametrize(
    ("value", "words"), [(np.inf, "are not finite"), (np.nan, "are not finite"), (0.0, "the same logits everywhere")]
)
def test_misread_weights_stop_the_start(value: float, words: str) -> None:
    checkpoint = tiny_checkpoint(tiny_config())
    checkpoint.tensors["model.norm.weight"][:] = value
    with np.errstate(all="ignore"), pytest.raises(LoadError, match=f"^tiny: after loading, a test prompt gives .*{words}"):
        checked(checkpoint)


def test_a_model_that_does_not_look_at_its_prompt_is_refused() -> None:
    checkpoint = tiny_checkpoint(tiny_config())
    checkpoint.tensors["model.embed_tokens.weight"][:] = 1.0
    with pytest.raises(LoadError, match="the same logits everywhere"):
        checked(checkpoint)


def written(folder: Path, name: str) -> Written:
    return write_quantized(folder, *FORMATS[name])


def options(model: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(model=str(model), max_model_len=64, kv_cache_memory_bytes=4 << 20, **changes)


@pytest.mark.parametrize("asked", ["int8", "fp8", "gptq"])
def test_a_checkpoint_that_says_otherwise(tmp_path: Path, asked: str) -> None:
    config = options(written(tmp_path, "awq-32").path, quantization=asked)
    words = rf"--quantization {asked} was given, but \S+ is quantized with awq; leave the option out"
    with pytest.raises(ConfigError, match=words):
        plan_model(config, tmp_path)


def test_a_checkpoint_that_is_not_quantized(tmp_path: Path) -> None:
    written(tmp_path, "awq-32")
    plain = write_quantized(tmp_path / "plain", None, FORMATS["awq-32"][1], left_out=("",))
    with pytest.raises(
        ConfigError, match=r"--quantization awq was given, but \S+ is no awq checkpoint; leave the option out"
    ):
        plan_model(options(plain.path, quantization="awq"), plain.path)


@pytest.mark.parametrize(("name", "asked"), [("awq-32", "awq"), ("gptq-desc_act", None), ("fp8-deepseek", "fp8")])
def test_an_engine_on_a_quantized_checkpoint(tmp_path: Path, name: str, asked: str | None) -> None:
    statuses: list[EngineStatus] = []
    engine = build_engine(options(written(tmp_path, name).path, quantization=asked), statuses.append)
    assert "weights as" in (statuses[-1].table or {})["dtype"]
    engine.add(Request("r", [5, 6, 7], SamplingParams(max_tokens=4, temperature=0.0), arrival_time=0.0))
    tokens = [token for _ in range(8) for delta in engine.step().deltas for token in delta.token_ids]
    engine.close()
    assert len(tokens) == 4
