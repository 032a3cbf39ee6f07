"""`octavo plan` on the real model's header."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.cli.main import main

Plan = Callable[..., tuple[int, dict[str, str], str]]


@pytest.fixture
def plan(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Runs the command: the exit code, the rows that it prints, and what it says on standard error."""

    def run(*arguments: str) -> tuple[int, dict[str, str], str]:
        code = main(["plan", str(smollm2), *arguments])
        shown = capsys.readouterr()
        rows = (re.split(r" {2,}", line.strip(), maxsplit=1) for line in shown.out.splitlines())
        return code, dict(rows), shown.err

    return run


def test_rows(plan: Plan, smollm2: Path) -> None:
    code, rows, _ = plan("--memory", "2GiB", "--dtype", "bfloat16", "--backend", "numpy")
    assert code == 0
    assert rows["model"] == str(smollm2)
    assert rows["memory"] == "2.00 GiB usable, 1.80 GiB of it allowed by --memory-utilization 0.9"
    assert rows["weights"] == "513 MiB"
    assert rows["activations"] == "210 MiB at most"
    blocks = (int(0.9 * 2**31) - 538060032 - 5 * 2048 * 8448 - 2 * 64 * 2**20) // (16 * 23040)
    assert rows["KV cache"].startswith(f"{blocks:,} blocks of 16 tokens, ")
    fits = [f"{blocks / (length / 16):,.1f} of {length:,} tokens" for length in (1024, 4096, 8192)]
    assert rows["requests that fit"] == ", ".join(fits)
    assert rows["limits"] == "max_model_len 8,192, max_num_seqs 256, max_num_batched_tokens 2,048"
    assert rows["more would fit with"].startswith("--memory-utilization 1.0 (")


def test_numpy_saves_nothing_by_quantization(plan: Plan) -> None:
    def dtype(backend: str) -> str:
        return plan("--memory", "3GiB", "--dtype", "bfloat16", "--quantization", "int4", "--backend", backend)[1]["dtype"]

    assert dtype("numpy") == f"{dtype('cpu')} (numpy unpacks them: nothing is saved)"


@pytest.mark.parametrize(
    ("size", "shown"),
    [("3GiB", "3.00 GiB"), ("3G", "3.00 GiB"), ("3GB", "2.79 GiB"), ("2.5GiB", "2.50 GiB"), ("3221225472", "3.00 GiB")],
)
def test_sizes(plan: Plan, size: str, shown: str) -> None:
    code, rows, _ = plan("--memory", size)
    assert code == 0
    assert rows["memory"].startswith(f"{shown} usable")


def test_what_is_said_to_fit_more_does(plan: Plan) -> None:
    arguments = ["--memory", "2GiB", "--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-batched-tokens", "8192"]
    _, rows, _ = plan(*arguments)
    before = _requests(rows)
    advice = re.findall(r"(--[a-z-]+) ([a-z\d.]+) \(([\d.,]+)\)", rows["more would fit with"])
    flags = {"--memory-utilization", "--max-num-batched-tokens", "--kv-cache-dtype"}  # the file has 4 bits: int8 is no help
    assert {flag for flag, _, _ in advice} == flags
    for flag, value, count in advice:
        _, other, _ = plan(*arguments, flag, value)
        assert _requests(other) == float(count) >= before + 0.1


@pytest.mark.parametrize("limit", ["num-gpu-blocks-override 600", "kv-cache-memory-bytes 400M", "max-num-seqs 2"])
def test_a_limit_that_was_set_is_what_gives_more(plan: Plan, limit: str) -> None:
    flag, value = limit.split()
    _, rows, _ = plan("--memory", "4GiB", f"--{flag}", value)
    (advice,) = re.findall(r"(--[a-z-]+) (\d+) \(", rows["more would fit with"])
    assert advice[0] == f"--{flag}"
    _, other, _ = plan("--memory", "4GiB", *advice)
    assert _requests(other) > _requests(rows)


def test_auto_and_what_does_not_fit(plan: Plan) -> None:
    code, rows, error = plan("--memory", "450MiB", "--dtype", "bfloat16", "--backend", "cpu")
    assert (code, rows) == (1, {})
    fits = re.search(r"max seq len \(8192\) .* stored in KV cache \((\d+)\)\. Try increasing gpu_memory", error)
    assert fits is not None
    code, rows, _ = plan("--memory", "450MiB", "--dtype", "bfloat16", "--backend", "cpu", "--max-model-len", "auto")
    assert (code, rows["requests that fit"].split(", ")[-1]) == (0, f"1.0 of {int(fits[1]):,} tokens")


def _requests(rows: dict[str, str]) -> float:
    """Of the longest length."""
    return float(rows["requests that fit"].split(", ")[-1].split()[0].replace(",", ""))
