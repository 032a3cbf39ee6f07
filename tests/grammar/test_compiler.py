"""The process in which grammars are compiled: what happens there stays there."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from octavo.errors import ValidationError
from octavo.grammar import compiler as module
from octavo.grammar.compiler import GrammarCompiler
from octavo.sampling.structured import StructuredOutputsParams

GOOD = StructuredOutputsParams(choice=["yes", "no"])

# Rules in a circle that call each other: here the library recurses until its stack ends, and its process with it.
CIRCLE = "start: " + " | ".join(f"r{i}" for i in range(2000)) + "\n"
CIRCLE += "\n".join(f'r{i}: r{(i + 1) % 2000} r{(i + 7) % 2000} | "a"' for i in range(2000))


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(lambda: ["<|im_start|>"])
    yield compiler
    compiler.close()


def pid(compiler: GrammarCompiler) -> int:
    assert compiler._process is not None
    return compiler._process._process.pid


def test_results_and_refusals_are_remembered(compiler: GrammarCompiler) -> None:
    bad = StructuredOutputsParams(regex="[")
    assert compiler.known(GOOD) is None
    text = compiler.compile(GOOD)
    messages = []
    for _ in range(2):
        with pytest.raises(ValidationError) as caught:
            compiler.compile(bad)
        messages.append((caught.value.message, caught.value.parameter))
    assert messages[0] == messages[1]
    assert messages[0][1] == "structured_outputs"
    assert compiler.known(GOOD) == text
    with pytest.raises(ValidationError, match="cannot be enforced"):
        compiler.known(bad)
    os.kill(pid(compiler), signal.SIGKILL)
    assert compiler.compile(StructuredOutputsParams(choice=["yes", "no"])) == text


def test_numbers_that_no_message_can_hold_are_refused(compiler: GrammarCompiler) -> None:
    for schema in ({"maximum": 10**30}, {"type": "string", "default": -(2**64)}):
        with pytest.raises(ValidationError, match="more than 64 bits"):
            compiler.compile(StructuredOutputsParams(json=schema))


def test_special_tokens_are_the_models(compiler: GrammarCompiler) -> None:
    compiler.compile(StructuredOutputsParams(grammar='start: "x" <|im_start|>'))
    with pytest.raises(ValidationError, match="unknown special token"):
        compiler.compile(StructuredOutputsParams(grammar='start: "x" <|other|>'))


def test_c62_a_process_that_dies_at_work_ends_nothing_else(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compile(GOOD)
    first = pid(compiler)
    ask = module._Process.ask

    def killed(process: module._Process, job: bytes, seconds: float) -> bytes | None:
        process._process.kill()
        process._process.wait()
        return ask(process, job, seconds)

    monkeypatch.setattr(module._Process, "ask", killed)
    with pytest.raises(ValidationError, match="takes more than 5 seconds, or more memory"):
        compiler.compile(StructuredOutputsParams(choice=["yes", "killed"]))
    monkeypatch.undo()
    assert "yes" in compiler.compile(StructuredOutputsParams(choice=["yes", "perhaps"]))
    assert pid(compiler) != first


def test_c62_a_grammar_that_recurses_deeply(compiler: GrammarCompiler) -> None:
    """Whether it ends the process depends on the library and the machine: others are answered either way."""
    with contextlib.suppress(ValidationError):
        compiler.compile(StructuredOutputsParams(grammar=CIRCLE))
    assert "yes" in compiler.compile(GOOD)


def test_c62_what_takes_too_long_is_ended(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is stopped in place of one that never ends."""
    compiler.compile(GOOD)
    os.kill(pid(compiler), signal.SIGSTOP)
    os.waitid(os.P_PID, pid(compiler), os.WSTOPPED)  # till then its threads go on
    monkeypatch.setattr(module, "SECONDS", 0.05)
    slow = StructuredOutputsParams(choice=["slow"])
    with pytest.raises(ValidationError, match="Make it smaller"):
        compiler.compile(slow)
    monkeypatch.undo()
    assert "fast" in compiler.compile(StructuredOutputsParams(choice=["fast"]))


def test_the_process_ends_with_the_compiler() -> None:
    compiler = GrammarCompiler(list)
    compiler.compile(GOOD)
    process = pid(compiler)
    del compiler
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_threads_share_the_process(compiler: GrammarCompiler) -> None:
    texts: dict[int, str] = {}

    def compile(i: int) -> None:
        texts[i] = compiler.compile(StructuredOutputsParams(choice=[f"choice {i % 3}"]))

    threads = [threading.Thread(target=compile, args=(i,)) for i in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"choice {i % 3}" in texts[i] for i in range(9))


def test_the_cache_forgets_the_oldest() -> None:
    cache = module._Cache(5_000)
    for i in range(50):
        cache.put(str(i).encode(), module.Compiled(text="x" * 500))
    kept = [i for i in range(50) if cache.get(str(i).encode()) is not None]
    assert kept == list(range(50 - len(kept), 50))
    assert 5 <= len(kept) <= 9
