"""Quantized checkpoints of a model by the public tools, on a CPU: what `benchmarks.quality --checkpoints` then measures.

    python -m tests.tools.write_safetensors MODEL --dtype bfloat16
    python -m benchmarks.quantized_checkpoints MODEL FOLDER [--only gptq]

Each format becomes a directory in FOLDER; those that are there already are left. The formats of llmcompressor 0.14 and of
gptqmodel 7.7 want an environment each (neither is Octavo's), so the script runs once in both and makes what it can there:
`pip install torch llmcompressor==0.14.*`, `pip install torch gptqmodel==7.7.*`. Calibration: this project's docs/*.md, so
that the text on which quality is measured was not seen.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).parent.parent / "docs"
PIECE_TOKENS, PIECES = 256, 64
PIECES_FOR_AWQ = 8  # each of which it takes through a layer for every scale that it tries

COMPRESSED: dict[str, dict[str, Any]] = {
    "fp8-dynamic": {"scheme": "FP8_DYNAMIC"},
    "fp8-static": {"scheme": "FP8"},
    "w8a16": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
    "w8a8": {"scheme": "W8A8", "gptq": True},
    "w4a16-g64": {"gptq": True, "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}},
}
GPTQ: dict[str, dict[str, Any]] = {
    "gptq-4bit-g64": {"bits": 4, "group_size": 64, "desc_act": False},
    "gptq-4bit-g64-desc_act": {"bits": 4, "group_size": 64, "desc_act": True},
    "gptq-8bit-g64": {"bits": 8, "group_size": 64, "desc_act": False},
    "awq-4bit-g64": {"bits": 4, "group_size": 64},
}


def pieces(tokenizer: Any, most: int = PIECES) -> list[list[int]]:
    """Token ids, `most` lists at most."""
    text = "\n\n".join(file.read_text(encoding="utf-8") for file in sorted(TEXTS.glob("*.md")))
    ids = tokenizer(text)["input_ids"]
    return [ids[at : at + PIECE_TOKENS] for at in range(0, len(ids) - PIECE_TOKENS + 1, PIECE_TOKENS)][:most]


def compress(source: Path, target: Path, name: str) -> None:
    """By llmcompressor, the head left as it is."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chosen, tokenizer = COMPRESSED[name], AutoTokenizer.from_pretrained(source)
    options: dict[str, Any] = {"ignore": ["lm_head"]}
    if "weights" in chosen:
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**chosen["weights"]))
        options["config_groups"] = {"group_0": scheme}
    else:
        options |= {"targets": "Linear", "scheme": chosen["scheme"]}
    modifier = GPTQModifier(**options) if chosen.get("gptq") else QuantizationModifier(**options)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="bfloat16")
    rows = [{"input_ids": each, "attention_mask": [1] * len(each)} for each in pieces(tokenizer)]
    needed: dict[str, Any] = {}
    if name not in ("fp8-dynamic", "w8a16"):  # the others look at activations
        needed = {
            "dataset": Dataset.from_list(rows),
            "max_seq_length": PIECE_TOKENS,
            "num_calibration_samples": len(rows),
        }
    oneshot(model=model, recipe=[modifier], **needed)
    model.save_pretrained(target, save_compressed=True)
    tokenizer.save_pretrained(target)


def quantize(source: Path, target: Path, name: str) -> None:
    """By gptqmodel, which on two cores takes one worker of its own accord and then asks for two."""
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
    from gptqmodel import GPTQModel, QuantizeConfig
    from gptqmodel.quantization import FORMAT, METHOD
    from transformers import AutoTokenizer

    kind = {"method": METHOD.AWQ, "format": FORMAT.GEMM} if name.startswith("awq") else {}
    model = GPTQModel.load(str(source), QuantizeConfig(**GPTQ[name], **kind, device="cpu"))
    ids = pieces(AutoTokenizer.from_pretrained(source), PIECES_FOR_AWQ if kind else PIECES)
    model.quantize([{"input_ids": each, "attention_mask": [1] * len(each)} for each in ids])
    model.save(str(target))


def main() -> None:
    """Everything that this environment's tools make and that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="formats whose name contains this")
    options = parser.parse_args()
    makers = {"llmcompressor": (compress, COMPRESSED), "gptqmodel": (quantize, GPTQ)}
    found = [made for tool, made in makers.items() if importlib.util.find_spec(tool)]
    if not found:
        parser.error("neither llmcompressor nor gptqmodel is installed")
    for make, formats in found:
        for name in formats:
            target = options.folder / name
            if options.only not in name or target.exists():
                continue
            unfinished = target.with_name(f"{name}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            make(options.model, unfinished, name)
            unfinished.rename(target)
            print(f"{target}", flush=True)


if __name__ == "__main__":
    main()
