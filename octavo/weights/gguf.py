"""GGUF files as checkpoints under Hugging Face's names, q and k rows in Hugging Face's order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.ops import Ops
from octavo.kernels.packed import PackedTensor
from octavo.weights.checkpoint import PLAIN_TYPES, StoredProjection
from octavo.weights.gguf_blocks import gguf_packing, unpack_blocks
from octavo.weights.gguf_header import GGUFTensor, read_header
from octavo.weights.gguf_names import FAMILIES, generation_config, hugging_face_config
from octavo.weights.pages import release_pages

_QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_ROPE_FACTORS = "rope_freqs.weight"
_LONGROPE_FACTORS = {"rope_factors_short.weight": "short_factor", "rope_factors_long.weight": "long_factor"}


class GGUFCheckpoint:
    """An opened .gguf file. `metadata` has every key of the file, arrays as lists (for the tokenizer)."""

    def __init__(self, path: Path) -> None:
        """LoadError for a damaged file, an architecture or a tensor that is not known, a type that cannot be read."""
        header = read_header(path)
        self.path = path
        self.metadata = header.metadata
        self.quantization_method = None
        self.dtype = "bfloat16"  # what "auto" makes of any file: the finest type that quantised weights deserve
        self._buffer = header.buffer
        name = self.metadata.get("general.architecture")
        family = FAMILIES.get(name) if isinstance(name, str) else None
        if family is None:
            raise LoadError(
                f"{path} has the GGUF architecture {name!r}, which is not supported; supported: {', '.join(FAMILIES)}"
            )
        self.hf_config = hugging_face_config(family, self.metadata)
        self.generation_config = generation_config(self.metadata)
        self._tensors: dict[str, GGUFTensor] = {}
        self._permuted_heads: dict[str, int] = {}
        self._norm_offset = family.norm_offset
        for stored, tensor in header.tensors.items():
            if tensor.type_name not in PLAIN_TYPES and tensor.type_name not in _QUANTIZED:
                supported = ", ".join((*PLAIN_TYPES, *_QUANTIZED))
                raise LoadError(
                    f"{path}: tensor {stored!r} is {tensor.type_name}, which is not supported; supported: {supported}"
                )
            if stored == _ROPE_FACTORS or stored in _LONGROPE_FACTORS:
                self._set_rope_factors(stored, tensor)
                continue
            renamed = family.tensor_name(stored)
            if renamed is None:
                raise LoadError(f"{path}: tensor {stored!r} is not known in the GGUF architecture {name!r}")
            self._tensors[renamed] = tensor
            heads_key = family.permuted_heads_key(stored)
            if heads_key is not None:
                self._permuted_heads[renamed] = self._heads(heads_key, stored, tensor)
        self._complete_config()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in the file."""
        return self._tensors[name].nbytes

    def read(self, name: str, dtype: np.dtype[Any], ops: Ops) -> NDArray[Any]:
        """A read-only view where the file has `dtype` already (and its rows need no reordering), else a new array."""
        tensor = self._tensors[name]
        if self._norm_offset and name.endswith("norm.weight"):
            stored = ops.dequantize(self._rows(tensor), tensor.type_name, tensor.shape, np.dtype(np.float32))
            own: NDArray[Any] = (stored - np.float32(self._norm_offset)).astype(dtype)
            return own
        rows = self._ordered_rows(name)
        if PLAIN_TYPES.get(tensor.type_name) == dtype:
            return rows.view(dtype).reshape(tensor.shape)
        return ops.dequantize(rows, tensor.type_name, tensor.shape, dtype)

    def projection(self, name: str) -> StoredProjection | None:
        """Matrices of the types that `gguf_packing` knows."""
        full = f"{name}.weight"
        tensor = self._tensors.get(full)
        if tensor is None or len(tensor.shape) != 2 or 0 in tensor.shape:
            return None
        packing = gguf_packing(tensor.type_name)
        if packing is None or not self._has_alike_partner(name, tensor):
            return None
        outputs, inputs = tensor.shape
        return StoredProjection((outputs, inputs), packing, (full,), lambda: self._unpacked(full), can_unpack=True)

    def _has_alike_partner(self, name: str, tensor: GGUFTensor) -> bool:
        """A gate and an up are one product with the activation between them, which only SiLU has for two formats."""
        if not str(self.hf_config["model_type"]).startswith("gemma"):  # the GELU gates among the families
            return True
        own, other = (".gate_proj", ".up_proj") if name.endswith(".gate_proj") else (".up_proj", ".gate_proj")
        partner = self._tensors.get(f"{name.removesuffix(own)}{other}.weight")
        return not name.endswith(own) or partner is None or partner.type_name == tensor.type_name

    def _unpacked(self, name: str) -> PackedTensor:
        packed = unpack_blocks(self._ordered_rows(name), self._tensors[name].type_name)
        self.release((name,))
        return packed

    def release(self, names: Iterable[str]) -> None:
        """See `Checkpoint`."""
        for name in names:
            tensor = self._tensors[name]
            release_pages(self._buffer, tensor.offset, tensor.nbytes)

    def _rows(self, tensor: GGUFTensor) -> NDArray[np.uint8]:
        """The file's bytes, [..., bytes of a row]."""
        flat = np.frombuffer(self._buffer, np.uint8, tensor.nbytes, tensor.offset)
        return flat.reshape(*tensor.shape[:-1], tensor.row_nbytes)

    def _ordered_rows(self, name: str) -> NDArray[np.uint8]:
        """The same, in Hugging Face's order."""
        tensor = self._tensors[name]
        rows, heads = self._rows(tensor), self._permuted_heads.get(name)
        return rows if heads is None else _unpermute(rows, heads, tensor.shape)

    def _complete_config(self) -> None:
        """What config.json says and only the tensors of a GGUF file tell."""
        self.hf_config["tie_word_embeddings"] = "lm_head.weight" not in self._tensors
        self.hf_config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in self._tensors
        self.hf_config["mlp_bias"] = "model.layers.0.mlp.down_proj.bias" in self._tensors
        if "model.embed_tokens.weight" in self._tensors:
            self.hf_config["vocab_size"] = self._tensors["model.embed_tokens.weight"].shape[0]

    def _heads(self, key: str, stored: str, tensor: GGUFTensor) -> int:
        heads = self.hf_config.get(key)
        has_whole_rows = len(tensor.shape) > 1 or tensor.type_name in PLAIN_TYPES
        if not isinstance(heads, int) or heads <= 0 or tensor.shape[0] % (2 * heads) or not has_whole_rows:
            raise LoadError(f"{self.path}: {tensor.shape[0]} rows of tensor {stored!r} do not fit {key} = {heads}")
        return heads

    def _set_rope_factors(self, stored: str, tensor: GGUFTensor) -> None:
        """llama.cpp stores what rope type llama3 makes of each frequency as divisors, instead of its parameters; and the two
        lists of LongRoPE as tensors."""
        if tensor.type_name != "F32":
            raise LoadError(f"{self.path}: tensor {stored} is {tensor.type_name} instead of F32")
        factors = self._rows(tensor).view(np.float32).ravel().tolist()
        if stored == _ROPE_FACTORS:
            self.hf_config["rope_scaling"] = {"rope_type": "factors", "factors": factors}
            return
        scaling = self.hf_config.setdefault("rope_scaling", {})
        scaling.update({"rope_type": "longrope", _LONGROPE_FACTORS[stored]: factors})
        attention_factor = self.metadata.get(f"{self.metadata['general.architecture']}.rope.scaling.attn_factor")
        if attention_factor is not None:
            scaling["attention_factor"] = attention_factor


def _unpermute(rows: NDArray[np.uint8], heads: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """llama.cpp interleaves the two halves of each head, [heads, 2, d/2] -> [heads, d/2, 2]; this goes back. Works on raw
    bytes: quantisation blocks never cross rows. A bias [out] has rows of one element."""
    split = rows.reshape(heads, shape[0] // heads // 2, 2, rows.size // shape[0])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)
