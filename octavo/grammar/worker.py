"""The process in which grammars are compiled: reads one job after the other from stdin, writes its result to stdout."""

from __future__ import annotations

import resource
import sys
import threading

import msgspec

from octavo.errors import ValidationError
from octavo.grammar.compile import Judge
from octavo.grammar.messages import Compiled, read_message, write_message
from octavo.sampling.structured import StructuredOutputsParams

MAX_MEMORY = 2 << 30  # bytes of addresses, the libraries included
STACK = 4 << 20  # less than the engine has for the same grammar (`octavo.grammar.matchers`)


def _work() -> None:
    source, results = sys.stdin.buffer, sys.stdout.buffer
    first = read_message(source)
    if first is None:
        return
    judge = Judge(msgspec.msgpack.decode(first, type=list[str]))
    decoder = msgspec.msgpack.Decoder(StructuredOutputsParams)
    while (job := read_message(source)) is not None:
        write_message(results, msgspec.msgpack.encode(_compile(judge, decoder.decode(job))))


def _compile(judge: Judge, params: StructuredOutputsParams) -> Compiled:
    try:
        return Compiled(text=judge.compile(params))
    except ValidationError as error:
        return Compiled(error=error.message)
    except (MemoryError, RecursionError):
        return Compiled(error="The grammar of structured_outputs is too large. (parameter=structured_outputs)")


def main() -> None:
    """In a thread, whose stack does not depend on the shell's limits."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK)
    thread = threading.Thread(target=_work, name="grammars")
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
