"""Experts are stored one by one, under names of their own: as Transformers writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.kernels.numpy.ops import NumpyOps
from octavo.weights.mxfp4 import mxfp4_tensor
from octavo.weights.safetensors import SafetensorsCheckpoint
from tests.golden.derive_families import SEED, load
from tests.models.families import FAMILIES, random_tensors

pytestmark = pytest.mark.oracle
SHAPES = {name: golden["shapes"] for name, golden in load().items()}
WITH_EXPERTS = [name for name, shapes in SHAPES.items() if any("experts" in tensor for tensor in shapes)]
PLAIN = [name for name in WITH_EXPERTS if FAMILIES[name].loaded is None]


@pytest.mark.parametrize("name", PLAIN)
def test_the_tensors_of_the_tests_are_those_of_files(name: str, tmp_path: Path) -> None:
    from tests.golden.transformers_reference import family_reference

    family = FAMILIES[name]
    model = family_reference(family.reference_config, random_tensors(SHAPES[name], SEED))
    model.save_pretrained(tmp_path)
    written, float32 = SafetensorsCheckpoint(tmp_path), np.dtype(np.float32)
    tensors = family.checkpoint(SHAPES[name], SEED).tensors
    behind = f"model.layers.{family.config['num_hidden_layers']}."  # a layer that Transformers does not write
    expected = {name: tensor for name, tensor in tensors.items() if not name.startswith(behind)}
    assert written.shapes() == {name: tensor.shape for name, tensor in expected.items()}
    for tensor, values in expected.items():
        assert np.array_equal(written.read(tensor, float32, NumpyOps()), values), tensor


def test_mxfp4_is_what_transformers_makes_of_it() -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    random = np.random.default_rng(1)
    blocks, scales = random.integers(0, 256, (7, 5, 16), np.uint8), random.integers(100, 140, (7, 5), np.uint8)
    theirs = convert_moe_packed_tensors(torch.from_numpy(blocks)[None], torch.from_numpy(scales)[None], dtype=torch.float32)
    assert np.array_equal(mxfp4_tensor("scales", blocks, scales).dequantized(), theirs[0].numpy().T)
