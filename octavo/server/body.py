"""Request bodies: size, media type, JSON, schema. Whatever is wrong with one is a RequestError, never a fault."""

from __future__ import annotations

import itertools
import json
import logging
import re
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope

from octavo.errors import RequestError
from octavo.server.errors import MediaTypeError, PayloadTooLargeError
from octavo.server.issues import Issue, SchemaError
from octavo.server.validation import convert, unknown_members

MAX_BODY_BYTES = 32 << 20
MAX_STRUCTURE = 1 << 20  # brackets and colons: each value they make takes far more memory and time than its bytes do
_MAX_NAMES_LOGGED = 1000
_MAX_NAMES_TOLD = 20  # of one body

logger = logging.getLogger(__name__)
StructType = TypeVar("StructType", bound=msgspec.Struct)
_names_logged: set[str] = set()


class ClientGoneError(RequestError):
    """The client closed the connection before its request was complete; nobody is left to tell."""


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises MediaTypeError, PayloadTooLargeError or ClientGoneError."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise MediaTypeError()
    if int(headers.get(b"content-length", b"0")) > MAX_BODY_BYTES:
        raise _too_large()
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("The client went away.")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return b"".join(pieces)


def _too_large() -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The request body is larger than {MAX_BODY_BYTES} bytes.")


def parse_body(struct: type[StructType], body: bytes) -> StructType:
    """The struct a body means; SchemaError with every issue. Members the schema does not have are logged once each."""
    value = decode_json(body)
    result = convert(struct, value)
    _log_unknown(unknown_members(struct, value))
    return result


def decode_json(body: bytes) -> Any:
    """Strict JSON (RFC 8259): no NaN, no lone surrogates, valid UTF-8; of a repeated member the last one counts."""
    if not body:
        raise SchemaError([Issue("missing", "body", "Field required", None)])
    if sum(map(body.count, (b"[", b"{", b":"))) > MAX_STRUCTURE:
        raise PayloadTooLargeError(f"The request body holds more than {MAX_STRUCTURE} opening brackets and colons.")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SchemaError([_json_issue(body, error)]) from None


def _json_issue(body: bytes, error: Exception) -> Issue:
    """Where and why, in the words of Python's json module; in msgspec's for what only msgspec refuses."""
    position = 0
    reason = str(error)
    try:
        json.loads(body)
    except json.JSONDecodeError as detail:
        position, reason = detail.pos, detail.msg
    except UnicodeDecodeError as detail:
        position, reason = detail.start, "Invalid UTF-8"
    except (ValueError, RecursionError):
        reason = "Nested too deeply, or a number with too many digits"
    else:
        at = re.search(r"\(byte (\d+)\)", reason)
        position = int(at.group(1)) if at else 0
        if reason == "Input data was truncated":
            reason = "Lone surrogate in a string"
    return Issue("json_invalid", f"body.{position}", "JSON decode error", {}, {"error": reason})


def _log_unknown(names: list[str]) -> None:
    room = min(_MAX_NAMES_TOLD, _MAX_NAMES_LOGGED - len(_names_logged))
    new = list(itertools.islice((name[:100] for name in names if name[:100] not in _names_logged), room))
    if new:
        _names_logged.update(new)
        logger.warning("Ignored fields that this server does not know (told once each): %s", ", ".join(map(repr, new)))
