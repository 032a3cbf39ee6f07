"""The rotary table: its growth, the registry of variants, and what each does to the frequencies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.errors import LoadError
from octavo.layers import rotary
from octavo.layers.rotary import RopeParameters, Rotary, rope_type
from octavo.models.config import ModelConfig, read_model_config
from tests.models.tiny import LLAMA3_ROPE, tiny_checkpoint, tiny_config


def config_with(**rope: Any) -> ModelConfig:
    config = read_model_config(tiny_checkpoint(tiny_config()))
    return replace(config, rope={"rope_type": "default", "rope_theta": 10000.0} | rope)


def angles(config: ModelConfig) -> np.ndarray:
    """Per position [r / 2], from the table's second row."""
    row = Rotary(config).table(2)[1].astype(np.float64)
    return np.arctan2(row[len(row) // 2 :], row[: len(row) // 2])


def test_default_frequencies() -> None:
    np.testing.assert_allclose(angles(config_with()), [10000 ** (-2 * i / 16) for i in range(8)], rtol=1e-6)


def test_only_the_asked_part_is_rotated() -> None:
    table = Rotary(config_with(partial_rotary_factor=0.25)).table(2)
    assert table.shape[1] == 4
    np.testing.assert_allclose(angles(config_with(partial_rotary_factor=0.25)), [1, 10000**-0.5], rtol=1e-6)


def test_linear_divides_all() -> None:
    np.testing.assert_allclose(angles(config_with(rope_type="linear", factor=4.0)), angles(config_with()) / 4, rtol=1e-6)


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    plain, scaled = angles(config_with(rope_theta=5000.0)), angles(config_with(**LLAMA3_ROPE))
    waves = 2 * np.pi / plain
    assert (waves < 16).any()
    assert (waves > 64).any()
    np.testing.assert_allclose(scaled[waves < 16], plain[waves < 16], rtol=1e-6)  # 64 / high_freq_factor
    np.testing.assert_allclose(scaled[waves > 64], plain[waves > 64] / 4, rtol=1e-6)  # 64 / low_freq_factor


def test_factors_of_a_gguf_file_divide_one_by_one() -> None:
    factors = [1.0, 1, 2, 3, 4, 5, 6, 8]
    np.testing.assert_allclose(
        angles(config_with(rope_type="factors", factors=factors)), angles(config_with()) / factors, rtol=1e-6
    )
    with pytest.raises(LoadError, match="should be 8, one for each pair, but are 3"):
        Rotary(config_with(rope_type="factors", factors=[1.0, 2, 3]))


def test_a_variant_is_one_registered_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "ROPE_TYPES", dict(rotary.ROPE_TYPES))

    @rope_type("halved")
    def _halved(parameters: RopeParameters) -> tuple[np.ndarray, float]:
        return parameters.plain_frequencies / 2, 3.0

    table = Rotary(config_with(rope_type="halved")).table(2)
    np.testing.assert_allclose(table[1, 0], 3 * np.cos(0.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("rope", "changes"),
    [
        ({}, False),
        ({"rope_type": "yarn", "factor": 4.0}, False),
        ({"rope_type": "dynamic", "factor": 4.0}, True),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}, True),
    ],
)
def test_what_depends_on_how_long_sequences_may_be(rope: dict[str, Any], changes: bool) -> None:
    config = config_with(**{"original_max_position_embeddings": 512} | rope)  # of 1024
    tables = [Rotary(config.with_sequences_of(length)).table(20)[:20] for length in (512, 4096)]
    assert np.array_equal(*tables) is not changes
    assert (config.with_sequences_of(512) == config) is not changes


def test_the_table_grows_without_changing() -> None:
    grown = Rotary(config_with())
    first = grown.table(10).copy()
    table = grown.table(5000)
    assert len(table) >= 5000
    np.testing.assert_array_equal(table[: len(first)], first)
    np.testing.assert_array_equal(table, Rotary(config_with()).table(len(table)))
    assert grown.table(4000) is table
