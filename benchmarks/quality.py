"""What 16 bits and quantization cost: perplexity and KL divergence over a text, beside Transformers where it is installed.

    python -m benchmarks.quality [--tokens 4000] [--only int8] [--transformers] [--checkpoints FOLDER] [--model MODEL]

SmolLM2-135M-Instruct on the start of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865; in the public domain), in
windows of 1,000 tokens of which each begins anew. A row's perplexity is exp of the mean negative log probability of the next
token; its KL divergence is that of its predictions from those of float32, in nats per token; "agrees" counts the
positions at which both have the same most likely token. `--transformers` needs the environment of `make oracle`.
`--checkpoints`: the model directories and .gguf files in a folder too, each another form of the same model, with the cpu
backend's own precision; "MiB" is what the weights take in memory. `--model` is another original, a directory.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Array, Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.models.sizes import weights_bytes
from octavo.runner.batch import Batch
from octavo.text.tokenizer import load_tokenizer
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from tests.tools.write_safetensors import smollm2_directory

TEXT = Path(__file__).with_name("alice.txt")
WINDOW = 1000
BLOCK_SIZE = 16
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

Logits = Callable[[list[int]], Array]  # ids [t] -> [t, vocabulary]
Loaded = tuple[Logits, int]  # and the bytes of the weights

QUANTIZATIONS = {
    f"int{bits}{f', groups of {group}' if group else ''}, activations int{activation_bits}": Quantization(
        bits, group, activation_bits
    )
    for bits, group in ((8, 0), (4, 32), (4, 64))
    for activation_bits in (16, 8)
}
QUANTIZATIONS["fp8"] = Quantization(8, is_float=True)


@dataclass
class Row:
    """Sums over all predictions of one variant."""

    loss: float = 0.0
    divergence: float = 0.0
    agreed: int = 0
    count: int = 0

    def add(self, got: Array, reference: Array, following: NDArray[np.int64]) -> None:
        """Log probabilities [t, vocabulary] of both, and the tokens that came [t]."""
        self.loss -= float(got[np.arange(len(following)), following].sum(dtype=np.float64))
        self.divergence += float((np.exp(reference) * (reference - got)).sum(dtype=np.float64))
        self.agreed += int((got.argmax(axis=1) == reference.argmax(axis=1)).sum())
        self.count += len(following)

    def __str__(self) -> str:
        perplexity = np.exp(self.loss / self.count)
        return f"{perplexity:12.4f} {self.divergence / self.count:12.6f} {self.agreed / self.count:10.2%}"


def variants(ops: CpuOps, path: Path, folder: Path | None) -> Iterator[tuple[str, Callable[[], Loaded]]]:
    """Name and loader of everything that runs on `ops`: the model at `path`, and the checkpoints in the folder."""
    yield "float32", lambda: octavo_logits(ops, path, np.dtype(np.float32))
    yield "bfloat16", lambda: octavo_logits(ops, path, BFLOAT16)
    for name, quantization in QUANTIZATIONS.items():
        yield name, lambda quantization=quantization: octavo_logits(ops, path, BFLOAT16, quantization)
    for each in sorted(folder.iterdir()) if folder else ():
        yield each.name, lambda each=each: octavo_logits(ops, each, BFLOAT16)


def octavo_logits(ops: CpuOps, path: Path, dtype: np.dtype[Any], quantization: Quantization | None = None) -> Loaded:
    """Weights and cache of `dtype`, and the bytes that the weights take."""
    checkpoint = open_checkpoint(path)
    config = read_model_config(checkpoint)
    model = build_model(config, Weights(checkpoint, dtype, ops, quantization=quantization), ops)
    nbytes = weights_bytes(config, checkpoint, dtype, ops, quantization)
    blocks = -(-WINDOW // BLOCK_SIZE)
    cache = ops.kv_cache(config.num_layers, blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype)

    def logits(ids: list[int]) -> Array:
        positions = np.arange(len(ids), dtype=np.int32)
        batch = Batch(
            token_ids=np.array(ids, np.int32),
            positions=positions,
            slot_mapping=positions.astype(np.int64),
            query_starts=np.array([0, len(ids)], np.int32),
            seq_lens=np.array([len(ids)], np.int32),
            block_tables=np.arange(blocks, dtype=np.int32)[None],
            logits_rows=positions,
        )
        return model.logits(model.forward(batch, cache))

    return logits, nbytes


def transformers_logits(path: Path, dtype: str) -> Loaded:
    """Transformers on torch, weights of `dtype`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()

    def logits(ids: list[int]) -> Array:
        with torch.inference_mode():
            result: Array = model(torch.tensor([ids])).logits[0].float().numpy()
        return result

    return logits, sum(tensor.nbytes for tensor in model.parameters())


def log_probabilities(logits: Array) -> Array:
    """Log softmax over the last axis, in float32 about the largest."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return result


def main() -> None:
    """Load one variant after the other; the reference's predictions are kept as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--only", default="", help="variants whose name contains this, beside float32")
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    path = options.model or smollm2_directory("float32")
    ids = load_tokenizer(path).encode(TEXT.read_text(encoding="utf-8"))[: options.tokens]
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]
    ops = CpuOps(isa=options.isa)
    found = list(variants(ops, path, options.checkpoints))
    if options.transformers:
        names = ("float32", "bfloat16")
        found += [(f"Transformers {name}", lambda name=name: transformers_logits(path, name)) for name in names]
    chosen = [(name, load) for name, load in found if name == "float32" or options.only in name]
    print(f"{len(ids)} tokens, {ops.description}\n{'':34}  perplexity  KL divergence    agrees     MiB")
    references: list[Array] = []
    for name, load in chosen:
        (logits, nbytes), row = load(), Row()
        for i, window in enumerate(windows):
            got = log_probabilities(logits(window)[:-1])
            if len(references) == i:
                references.append(got)
            row.add(got, references[i], np.array(window[1:]))
        print(f"{name:34}{row} {nbytes / 2**20:7.1f}", flush=True)
        del logits
        gc.collect()


if __name__ == "__main__":
    main()
