"""Small GGUF files of a Llama, written by the gguf library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

HIDDEN, INNER, VOCABULARY, HEADS, KV_HEADS, HEAD_DIM = 256, 512, 64, 4, 2, 64
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (VOCABULARY, HIDDEN),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (INNER, HIDDEN),
    "blk.0.ffn_up.weight": (INNER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INNER),
    "output_norm.weight": (HIDDEN,),
}
METADATA: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 512,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "Ġc", "€", ""],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
    "tokenizer.ggml.eos_token_id": 4,
    "tokenizer.ggml.add_bos_token": False,
}
Stored = tuple[NDArray[Any], str]  # bytes or values as stored, type name


# Where a block has numbers of half precision: its scales and least values.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)},
}


def random_tensor(shape: tuple[int, ...], type_name: str, seed: int = 0, scale: float = 1.0) -> Stored:
    """Random content of the type: values, or blocks of random bytes but for their numbers of half precision, which are about
    as large as `scale`."""
    random = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name in ("F32", "F16"):
        return random.standard_normal(shape).astype(np.float32 if type_name == "F32" else np.float16), type_name
    if type_name == "BF16":
        return random.standard_normal(shape).astype(ml_dtypes.bfloat16).view(np.uint8), type_name
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (*shape[:-1], shape[-1] // block, nbytes), dtype=np.uint8)
    for start in HALVES.get(type_name, ()):
        numbers = (random.standard_normal(raw.shape[:-1]) * scale).astype(np.float16)
        raw[..., start : start + 2] = numbers[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1), type_name


def random_tensors(type_name: str = "F32") -> dict[str, Stored]:
    """All matrices of the type, norms in F32 as llama.cpp writes them."""
    return {
        name: random_tensor(shape, type_name if len(shape) > 1 else "F32", seed)
        for seed, (name, shape) in enumerate(SHAPES.items())
    }


def values(stored: Stored) -> NDArray[np.float32]:
    """What the gguf library makes of it."""
    array, type_name = stored
    return np.asarray(gguf.quants.dequantize(array, gguf.GGMLQuantizationType[type_name]), np.float32)


def write_gguf(
    path: Path, tensors: dict[str, Stored], metadata: dict[str, Any] | None = None, architecture: str = "llama"
) -> Path:
    """`metadata` adds to METADATA; None as a value leaves the key out."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (METADATA | (metadata or {})).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, (array, type_name) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
