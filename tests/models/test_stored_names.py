"""Experts are stored one by one, under names of their own: as Transformers writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.kernels.numpy.ops import NumpyOps
from octavo.weights.safetensors import SafetensorsCheckpoint
from tests.golden.derive_families import SEED, load
from tests.models.families import FAMILIES, random_tensors

pytestmark = pytest.mark.oracle
SHAPES = {name: golden["shapes"] for name, golden in load().items()}
WITH_EXPERTS = [name for name, shapes in SHAPES.items() if any("experts" in tensor for tensor in shapes)]


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_the_tensors_of_the_tests_are_those_of_files(name: str, tmp_path: Path) -> None:
    from tests.golden.transformers_reference import family_reference

    family = FAMILIES[name]
    model = family_reference(family.reference_config, random_tensors(SHAPES[name], SEED))
    model.save_pretrained(tmp_path)
    written, float32 = SafetensorsCheckpoint(tmp_path), np.dtype(np.float32)
    expected = family.checkpoint(SHAPES[name], SEED).tensors
    assert written.shapes() == {name: tensor.shape for name, tensor in expected.items()}
    for tensor, values in expected.items():
        assert np.array_equal(written.read(tensor, float32, NumpyOps()), values), tensor
