"""What a process with a model takes in memory for each way to keep the weights, beside bfloat16.

    python -m benchmarks.memory MODEL [--only int4] [--checkpoint DIRECTORY_OR_GGUF]

MODEL: a 16-bit model directory. Each format has a process of its own, which loads the model and answers 16 tokens to a
prompt of 16. Resident after that answer, and of it what the model's start added to an interpreter with Octavo imported; and
the peak while loading. Linux: it reads /proc/self/status.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
PROMPT, ANSWER = list(range(1000, 1016)), 16
FORMATS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "int8": {"quantization": "int8"},
    "fp8": {"quantization": "fp8"},
    "int4, groups of 32": {"quantization": "int4", "quantization_group_size": 32},
    "int4, groups of 64": {"quantization": "int4", "quantization_group_size": 64},
    "int4, groups of 128": {"quantization": "int4", "quantization_group_size": 128},
}


def memory(key: str) -> int:
    """VmRSS or VmHWM of this process in MiB."""
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith(key))


def child(model: str, options: dict[str, Any]) -> dict[str, int]:
    """Load, answer, and report."""
    from octavo import LLM, SamplingParams

    before = memory("VmRSS")
    with LLM(model, dtype="bfloat16", max_model_len=512, max_num_seqs=8, skip_tokenizer_init=True, **options) as llm:
        loaded = memory("VmHWM")
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
        llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
        return {"before": before, "peak": loaded, "resident": memory("VmRSS")}


def measured(model: str, options: dict[str, Any]) -> dict[str, int]:
    """What a process of its own reports."""
    arguments = [sys.executable, "-m", "benchmarks.memory", model, "--child", json.dumps(options)]
    report: dict[str, int] = json.loads(subprocess.run(arguments, stdout=subprocess.PIPE, check=True).stdout)
    return report


def main() -> None:
    """A line for each format; the first is what the others are compared with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", default="", help="formats whose name contains this, beside bfloat16")
    parser.add_argument("--checkpoint", action="append", default=[], help="another form of the model")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.model, json.loads(options.child))))
        return
    chosen = [(name, options.model, more) for name, more in FORMATS.items() if name == "bfloat16" or options.only in name]
    chosen += [(Path(each).name, each, {}) for each in options.checkpoint]
    print(f"{'MiB':24} resident  of bf16's    growth  of bf16's  peak of loading")
    first: dict[str, int] | None = None
    for name, model, more in chosen:
        report = measured(model, more)
        first = first or report
        growth, of = report["resident"] - report["before"], first["resident"] - first["before"]
        print(
            f"{name:24}{report['resident']:9} {report['resident'] / first['resident']:10.3f} {growth:9} {growth / of:10.3f}"
            f"{report['peak']:17}",
            flush=True,
        )


if __name__ == "__main__":
    main()
