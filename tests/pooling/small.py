"""Small pooling models with random weights, and models made of MiniLM, written as directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers.processors import TemplateProcessing

from tests.models.tiny import tiny_checkpoint, tiny_config
from tests.text import small

Tensors = dict[str, NDArray[np.float32]]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write_model(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def write_modules(folder: Path, mode: str, *, normalises: bool, **more: Any) -> Path:
    """The files of sentence-transformers; `more` is config_sentence_transformers.json."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalises else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": 64, **{f"pooling_mode_{name}": name == mode for name in modes}}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(more))
    return folder


def bert_config(architecture: str = "BertModel", **changes: Any) -> dict[str, Any]:
    """config.json of an encoder with 2 layers, for MiniLM's vocabulary."""
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
        "dtype": "float32",
    }
    return config | changes


def bert_tensors(config: dict[str, Any], prefix: str, head: dict[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Random weights, large enough that every part moves the result."""
    random = np.random.RandomState(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        f"{prefix}embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        f"{prefix}embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
    }
    norms = [f"{prefix}embeddings.LayerNorm"]
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{i}"
        linears = {f"attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
        linears |= {"attention.output.dense": (hidden, hidden), "intermediate.dense": (inner, hidden)}
        linears |= {"output.dense": (hidden, inner)}
        for name, shape in linears.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    shapes |= {f"{norm}.{kind}": (hidden,) for norm in norms for kind in ("weight", "bias")}
    tensors = {name: (0.2 * random.standard_normal(shape)).astype(np.float32) for name, shape in {**shapes, **head}.items()}
    for name in tensors:
        if name.endswith("LayerNorm.weight"):
            tensors[name] += 1
    return tensors


def bert_classifier(folder: Path, minilm: Path, labels: int, **changes: Any) -> Path:
    """A small BertForSequenceClassification with MiniLM's tokenizer."""
    names = {str(i): f"class {i}" for i in range(labels)}
    config = bert_config("BertForSequenceClassification", id2label=names, **changes)
    hidden = config["hidden_size"]
    head = {"bert.pooler.dense.weight": (hidden, hidden), "bert.pooler.dense.bias": (hidden,)}
    head |= {"classifier.weight": (labels, hidden), "classifier.bias": (labels,)}
    copy_tokenizer(minilm, folder)
    return write_model(folder, config, bert_tensors(config, "bert.", head))


def minilm_cross_encoder(folder: Path, minilm: Path, labels: int = 1) -> Path:
    """MiniLM with a head of seeded random numbers."""
    config = json.loads((minilm / "config.json").read_text())
    names = {str(i): f"LABEL_{i}" for i in range(labels)}
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": names, "dtype": "float32"}
    stored = load_file(minilm / "model.safetensors")
    body = {f"bert.{name}": value for name, value in stored.items() if "position_ids" not in name}
    random = np.random.RandomState(4)
    head = random.standard_normal((labels, config["hidden_size"])).astype(np.float32)
    copy_tokenizer(minilm, folder)
    return write_model(folder, config, {**body, "classifier.weight": head, "classifier.bias": np.zeros(labels, np.float32)})


def decoder_embedder(folder: Path, *, bare: bool = True, labels: int = 0, seed: int = 0, **changes: Any) -> Path:
    """A small Llama that pools its last token, with a byte-level tokenizer that ends a text with `<|end|>`. `bare`: its
    tensors have no `model.` before their names, as sentence-transformers writes them; `labels`: with a head of so many."""
    architecture = "LlamaForSequenceClassification" if labels else "LlamaModel" if bare else "LlamaForCausalLM"
    config = tiny_config(architectures=[architecture], vocab_size=404, tie_word_embeddings=True, **changes)
    if labels:
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
    tensors = tiny_checkpoint({**config, "architectures": ["LlamaForCausalLM"]}, seed).tensors
    if labels:
        tensors["score.weight"] = np.random.RandomState(9).standard_normal((labels, 64)).astype(np.float32)
    elif bare:
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    write_model(folder, config, tensors)
    backend = small.byte_level()._backend
    processor = TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", backend.token_to_id("<|end|>"))])
    saved = json.loads(backend.to_str())
    (folder / "tokenizer.json").write_text(json.dumps({**saved, "post_processor": json.loads(processor.__getstate__())}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder


def copy_tokenizer(source: Path, folder: Path) -> None:
    """MiniLM's, which is BERT's."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copy(source / name, folder / name)
