"""The errors of the server's own, and how one becomes bytes: as OpenAI has it, `{"error": {"message", "type", "param",
"code"}}`, unless a route speaks another dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo.errors import OctavoError, RequestError, UnavailableError


class ErrorInfo(msgspec.Struct):
    """What went wrong. `code` is the HTTP status, also inside a stream whose own status was 200, or OpenAI's name."""

    message: str
    type: str
    param: str | None
    code: int | str


class ErrorResponse(msgspec.Struct):
    """The envelope."""

    error: ErrorInfo


class PayloadTooLargeError(RequestError):
    """The body is longer than the server reads."""

    status = 413
    kind = "Request Entity Too Large"


class MediaTypeError(RequestError):
    """The body does not say that it is JSON."""

    status = 400
    kind = "Bad Request"

    def __init__(self) -> None:
        super().__init__("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")


class InternalError(RequestError):
    """A fault of ours. The client learns that, and nothing of where; the traceback is in the log."""

    def __init__(self) -> None:
        super().__init__("Internal server error")


class LoadingError(UnavailableError):
    """The model is not ready yet."""

    reason = "loading"


class ShuttingDownError(UnavailableError):
    """The server got SIGTERM: it takes nothing new, and ends what outlives the grace time."""

    reason = "stopping"

    def __init__(self, message: str = "The server is shutting down and takes no new requests.") -> None:
        super().__init__(message)


def error_body(error: OctavoError) -> bytes:
    """The envelope of an error, as JSON."""
    code = error.code or error.status
    return msgspec.json.encode(ErrorResponse(ErrorInfo(error.message, error.kind, error.parameter, code)))


@dataclass(frozen=True)
class Dialect:
    """How a family of routes words what all routes have: an error (whose body is an `error_type`), the event of one in a
    stream, and the stream's end."""

    error_body: Callable[[OctavoError], bytes]
    error_event: Callable[[OctavoError], bytes]
    end: bytes
    error_type: type[msgspec.Struct] = ErrorResponse


OPENAI = Dialect(error_body, lambda error: b"data: " + error_body(error) + b"\n\n", b"data: [DONE]\n\n")


def error_headers(error: OctavoError) -> list[tuple[bytes, bytes]]:
    """Headers that go with it: Retry-After where trying again makes sense."""
    return [] if error.retry_after is None else [(b"retry-after", str(error.retry_after).encode())]
