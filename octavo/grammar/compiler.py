"""The client side of structured output: sends what a request asks for to the grammar process, and remembers the results."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from octavo.child_process import environment
from octavo.errors import UnavailableError, ValidationError
from octavo.grammar.messages import Compiled, read_message, write_message
from octavo.sampling.structured import StructuredOutputsParams

SECONDS = 5.0
"""For one grammar, from when the process has time for it. Ordinary ones take milliseconds."""

START_SECONDS = 30.0
CACHE_BYTES = 16 << 20


class GrammarCompiler:
    """Grammars for one model. The process starts with the first of them, and again after it had to be ended. Safe to use
    from several threads, which wait for each other."""

    def __init__(self, special_tokens: Callable[[], Sequence[str]]) -> None:
        """`special_tokens()` are the texts of the model's special tokens, asked for when the process starts."""
        self._special_tokens = special_tokens
        self._cache = _Cache(CACHE_BYTES)
        self._working = threading.Lock()
        self._process: _Process | None = None

    def compile(self, params: StructuredOutputsParams) -> str:
        """The text of the grammar that a request asks for. ValidationError for one that cannot be enforced, naming what and
        where, or that takes longer than SECONDS."""
        key = _key(params)
        result = self._cache.get(key)
        if result is None:
            with self._working:
                result = self._cache.get(key)
                if result is None:
                    result, is_verdict = self._compile(key)
                    if is_verdict:
                        self._cache.put(key, result)
        return _text_of(result)

    def known(self, params: StructuredOutputsParams) -> str | None:
        """What `compile` gives or raises, where it has its answer at once; None where it has not."""
        result = self._cache.get(_key(params))
        return None if result is None else _text_of(result)

    def size(self, params: StructuredOutputsParams) -> int:
        """Bytes of what the process gets to compile."""
        return len(_key(params))

    def close(self) -> None:
        """End the process, whatever it is at. Idempotent; a later `compile` starts another."""
        process = self._process
        if process is not None:
            process.close()

    def _compile(self, job: bytes) -> tuple[Compiled, bool]:
        """The result, and whether it would be the same another time: a process that was not heard of may just be starved."""
        if self._process is None or not self._process.is_alive:
            self._end()
            self._process = _Process(self._special_tokens())
        answer = self._process.ask(job, SECONDS)
        if answer is not None:
            return msgspec.msgpack.decode(answer, type=Compiled), True
        self._end()
        silent = Compiled(
            error=f"The grammar of structured_outputs takes more than {SECONDS:.0f} seconds, or more memory than "
            "there is for it, to compile. Make it smaller. (parameter=structured_outputs)"
        )
        return silent, False

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def _key(params: StructuredOutputsParams) -> bytes:
    try:
        return msgspec.msgpack.encode(params)
    except OverflowError:
        text = "structured_outputs holds a whole number of more than 64 bits, which no grammar is made for"
        raise ValidationError(text, parameter="structured_outputs") from None


def _text_of(result: Compiled) -> str:
    """ValidationError, as it was raised in the process, its parameter included, for one without a text."""
    if result.text is not None:
        return result.text
    error = ValidationError(result.error or "")
    error.parameter = "structured_outputs"
    raise error


class _Process:
    """One process of `octavo.grammar.worker`."""

    def __init__(self, special_tokens: Sequence[str]) -> None:
        command = [sys.executable, "-m", "octavo.grammar.worker"]
        try:
            self._process = subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise UnavailableError(f"the process that compiles grammars cannot be started: {error}") from None
        self.close = weakref.finalize(self, _end, self._process)
        self._is_new = True
        self._first = msgspec.msgpack.encode(list(special_tokens))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, job: bytes, seconds: float) -> bytes | None:
        """The answer; None if there is none within the time (a new process gets time to start), or the process ended."""
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None
        assert sink is not None
        try:
            if self._is_new:
                write_message(sink, self._first)
                seconds += START_SECONDS
                self._is_new = False
            write_message(sink, job)
        except BrokenPipeError:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return read_message(source)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what it had not read yet
                pipe.close()


class _Cache:
    """Results by their jobs, the least recently used forgotten first; failures are results too."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._results: OrderedDict[bytes, Compiled] = OrderedDict()

    def get(self, job: bytes) -> Compiled | None:
        with self._lock:
            if job in self._results:
                self._results.move_to_end(job)
            return self._results.get(job)

    def put(self, job: bytes, result: Compiled) -> None:
        with self._lock:
            if job not in self._results:
                self._results[job] = result
                self._bytes += _size(job, result)
            while self._bytes > self._max_bytes and len(self._results) > 1:
                self._bytes -= _size(*self._results.popitem(last=False))


def _size(job: bytes, result: Compiled) -> int:
    return len(job) + len(result.text or "") + len(result.error or "") + 200
