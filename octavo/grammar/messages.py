"""What goes between the clients of the grammar process and the process: msgpack behind its length (4 bytes, big endian).

client -> process  the texts of the model's special tokens, once; then StructuredOutputsParams
process -> client  one Compiled for each
"""

from __future__ import annotations

from typing import IO

import msgspec


class Compiled(msgspec.Struct, array_like=True):
    """A grammar's text, or why there is none."""

    text: str | None = None
    error: str | None = None


def read_message(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    body = stream.read(size)
    return body if len(body) == size else None


def write_message(stream: IO[bytes], body: bytes) -> None:
    """One message."""
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()
