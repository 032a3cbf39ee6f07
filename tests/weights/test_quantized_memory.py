"""What quantized weights take in the memory of a process, while they are loaded and afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.weights.safetensors import INDEX_NAME
from tests.models.tiny import tiny_config, tiny_shapes
from tests.weights.quantized_files import BFLOAT16, FLOAT8, write_safetensors

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20
LAYERS = 8
CONFIG = tiny_config(
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=LAYERS,
    num_attention_heads=12,
    num_key_value_heads=12,
    head_dim=64,
    dtype="bfloat16",
)
WORDS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WORDS}},
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

SCRIPT = """
import json, sys
from pathlib import Path
import ml_dtypes, numpy as np
from octavo.kernels.cpu.ops import CpuOps
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.models.sizes import weights_bytes
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
import octavo.models.llama, octavo.weights.quantized.gptq, octavo.weights.quantized.compressed_tensors
import octavo.weights.quantized.fp8
from octavo.kernels.ops import Quantization
from octavo.offline.memory import release_freed_memory

def memory(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))

path, bits, is_float = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "float"
quantization = Quantization(bits, 64 if bits == 4 else 0, is_float=is_float) if bits else None
ops, checkpoint = CpuOps(1), open_checkpoint(path)
config, dtype = read_model_config(checkpoint), np.dtype(ml_dtypes.bfloat16)
planned = weights_bytes(config, checkpoint, dtype, ops, quantization)
before = memory("VmRSS")
model = build_model(config, Weights(checkpoint, dtype, ops, quantization=quantization), ops)
peak = memory("VmHWM") - before
release_freed_memory()
growth = memory("VmRSS") - before
print(json.dumps({"planned": planned, "growth": growth, "peak": peak}))
"""


def write_sharded(folder: Path, quantization_config: dict[str, Any] | None) -> int:
    """A layer in each shard; the bytes of the largest one. Random codes."""
    random = np.random.default_rng(0)
    shards: dict[str, dict[str, Any]] = {}
    for tensor, shape in tiny_shapes(CONFIG).items():
        layer = tensor.split(".")[2] if ".layers." in tensor else "rest"
        shard = shards.setdefault(f"{layer}.safetensors", {})
        name = tensor.removesuffix(".weight")
        if layer == "rest" or len(shape) == 1 or quantization_config is None:
            shard[tensor] = (random.standard_normal(shape, np.float32) * 0.02).astype(BFLOAT16)
        elif quantization_config is FP8:
            codes = random.integers(0, 0x70, shape, np.uint8)
            shard[tensor] = codes.view(FLOAT8)
            shard[f"{name}.weight_scale_inv"] = np.full((-(-shape[0] // 128), shape[1] // 128), 1e-4, np.float32)
        elif quantization_config is GPTQ:
            groups = shape[1] // 64
            shard[f"{name}.qweight"] = random.integers(0, 2**31, (shape[1] // 8, shape[0]), np.int32)
            shard[f"{name}.qzeros"] = np.full((groups, shape[0] // 8), 0x77777777, np.int32)
            shard[f"{name}.scales"] = np.full((groups, shape[0]), 1e-3, np.float16)
            shard[f"{name}.g_idx"] = np.random.default_rng(1).permutation(np.arange(shape[1], dtype=np.int32) // 64)
        else:
            shard[f"{name}.weight_packed"] = random.integers(0, 2**31, (shape[0], shape[1] // 8), np.int32)
            shard[f"{name}.weight_scale"] = np.full((shape[0], shape[1] // 64), 1e-3, BFLOAT16)
            shard[f"{name}.weight_shape"] = np.array(shape, np.int64)
    for file, tensors in shards.items():
        write_safetensors(folder / file, tensors)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    config = CONFIG if quantization_config is None else CONFIG | {"quantization_config": quantization_config}
    (folder / "config.json").write_text(json.dumps(config))
    return max((folder / file).stat().st_size for file in shards)


def measured(folder: Path, bits: int = 0, kind: str = "int") -> dict[str, int]:
    arguments = [sys.executable, "-c", SCRIPT, str(folder), str(bits), kind]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, int] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    ("config", "bits", "kind", "share"),
    [
        (COMPRESSED, 0, "int", 0.30),
        (GPTQ, 0, "int", 0.30),
        (FP8, 0, "float", 0.52),
        (None, 4, "int", 0.30),
        (None, 8, "int", 0.52),
        (None, 8, "float", 0.52),
    ],
    ids=["int4 packed", "int4 gptq", "fp8 blocks", "int4 on the fly", "int8 on the fly", "fp8 on the fly"],
)
def test_loading_never_needs_more_than_the_weights_and_one_shard(
    tmp_path: Path, config: dict[str, Any] | None, bits: int, kind: str, share: float
) -> None:
    shard = write_sharded(tmp_path, config)
    report = measured(tmp_path, bits, kind)
    bfloat16 = 2 * sum(int(np.prod(shape)) for shape in tiny_shapes(CONFIG).values() if len(shape) == 2)
    slack = 6 * MIB  # the interpreter's, and pages that huge ones fill up
    assert report["planned"] < (share + 0.01) * bfloat16
    assert report["growth"] < report["planned"] + slack
    assert report["peak"] < report["planned"] + shard + slack
