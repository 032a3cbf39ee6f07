"""Packed projections that a family cuts into others: they are what the same numbers unpacked are."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import LoadError
from octavo.kernels.packed import PackedTensor, Packing
from octavo.weights.checkpoint import StoredProjection
from tests.golden.derive_families import SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.families import FAMILIES
from tests.models.tiny import TinyCheckpoint, tiny_model

GOLDEN = load()
PACKING = Packing("int8", 32, np.dtype(np.float32))
NOT_PACKED = (".mlp.gate.", "embed", "tok_embeddings", "lm_head", "output.weight", "output_layer", "norm")


class PackedCheckpoint(TinyCheckpoint):
    """Whose projections are whole numbers of 8 bits in groups of 32 inputs."""

    def projection(self, name: str) -> StoredProjection | None:
        weight = f"{name}.weight"
        tensor = self.tensors.get(weight)
        if tensor is None or tensor.ndim != 2 or any(part in weight for part in NOT_PACKED):
            return None
        groups = tensor.reshape(len(tensor), -1, 32)
        scales = np.abs(groups).max(axis=-1) / np.float32(127)
        codes = np.rint(groups / scales[..., None]) + 128
        packed = PackedTensor(PACKING, codes.astype(np.uint8).reshape(tensor.shape), scales)
        return StoredProjection(packed.shape, PACKING, (weight,), lambda: packed)

    def unpacked(self) -> TinyCheckpoint:
        """With what the codes stand for."""
        tensors = dict(self.tensors)
        for name in tensors:
            if (stored := self.projection(name.removesuffix(".weight"))) is not None:
                tensors[name] = stored.read().dequantized()
        return TinyCheckpoint(self.hf_config, tensors)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["qwen2", "phi3", "glm", "chatglm", "gpt_neox", "internlm2", "baichuan", "deepseek_v3"])
def test_packed_projections(name: str, backend: str) -> None:
    golden, ops = GOLDEN[name], BACKENDS[backend]()
    plain = FAMILIES[name].checkpoint(golden["shapes"], SEED)
    checkpoint, prompt = PackedCheckpoint(plain.hf_config, plain.tensors), prompt_of(golden["prompt_seed"])
    logits = logits_of(tiny_model(ops, checkpoint), ops, prompt, 64)
    expected = logits_of(tiny_model(ops, checkpoint.unpacked()), ops, prompt, 64)
    assert np.abs(logits - expected).max() < 2e-3 * np.abs(expected).max()  # activations are of 16 bits
    original = logits_of(tiny_model(ops, plain), ops, prompt, 64)
    assert np.abs(logits - original).max() > 5e-3 * np.abs(original).max()  # so they were packed
    ops.close()


class CodesApart(PackedCheckpoint):
    """As quantized files are: no tensor has the name of a projection's matrix."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            name if self.projection(name.removesuffix(".weight")) is None else f"{name}_codes": shape
            for name, shape in super().shapes().items()
        }

    def nbytes(self, name: str) -> int:
        return super().nbytes(name.removesuffix("_codes"))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("phi3", {"num_key_value_heads": 1}, r"qkv_proj has shape \[128, 64\], but the configuration needs \[96, 64\]$"),
        ("phi3", {"intermediate_size": 64}, r"gate_up_proj has shape \[192, 64\], but the configuration needs \[128, 64\]$"),
        (
            "internlm2",
            {"num_key_value_heads": 1},
            r"wqkv has shape \[128, 64\], .* \[16, 64\] for model.*v_proj$",
        ),
    ],
)
def test_packed_projections_of_other_heads_are_refused(name: str, changes: dict[str, int], message: str) -> None:
    plain = FAMILIES[name].checkpoint(GOLDEN[name]["shapes"], SEED)
    with pytest.raises(LoadError, match=message) as caught:
        tiny_model(BACKENDS["numpy"](), CodesApart({**plain.hf_config, **changes}, plain.tensors))
    assert "\n" not in str(caught.value)
