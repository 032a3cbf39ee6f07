"""What crosses between `ProcessClient` and the engine's process. msgpack over zmq, except `Launch` and the last words.

client -> engine  stdin      Launch, once
                  commands   Submit | Abort | Call
engine -> client  outputs    EngineOutput
                  replies    Reply, one per Call
                  line       EngineStatus "dead", if the engine can still say why; then the end of file
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.engine.request import EngineOutput, EngineStatus, Request


class Launch(msgspec.Struct):
    """What the new process is to become. `factory` is "module:function" with `build_engine`'s signature."""

    config: EngineConfig
    factory: str
    directory: str  # of the sockets
    started: float  # time.time() before the process was started


class Submit(msgspec.Struct, tag=True, array_like=True):
    """`EngineClient.submit`."""

    request: Request


class Abort(msgspec.Struct, tag=True, array_like=True):
    """`EngineClient.abort`."""

    request_id: str
    index: int | None
    reason: str


class Call(msgspec.Struct, tag=True, array_like=True):
    """`EngineClient.call`; `number` finds the reply."""

    number: int
    method: str
    arguments: list[Any]


class Reply(msgspec.Struct, array_like=True):
    """The result of a call, or why there is none."""

    number: int
    result: Any
    error: str | None


Command = Submit | Abort | Call

encode = msgspec.msgpack.Encoder().encode
decode_launch = msgspec.msgpack.Decoder(Launch).decode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_output = msgspec.msgpack.Decoder(EngineOutput).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_status = msgspec.msgpack.Decoder(EngineStatus).decode


def address(directory: str | Path, socket: str) -> str:
    """The zmq address of one of the sockets: commands, outputs or replies."""
    return f"ipc://{directory}/{socket}"
