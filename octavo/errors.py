"""Every error that Octavo raises on purpose, each with its HTTP status.

Two branches: what a request did wrong (`RequestError`, sent to the client in the error envelope) and what stops a start
(`StartupError`, printed as one line). Anything else that escapes is a fault of ours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any


class OctavoError(Exception):
    """Base of all deliberate errors. `status` is the HTTP status, `kind` the envelope's `type`."""

    status = 500
    kind = "InternalServerError"
    code: str | None = None  # OpenAI's name for it, where clients look for that

    def __init__(self, message: str, *, parameter: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter
        self.retry_after = retry_after


class RequestError(OctavoError):
    """A request cannot be served; the others go on."""


class ValidationError(RequestError, ValueError):
    """A value is outside what is allowed. With `parameter`, the text ends in ` (parameter=X, value=Y)` as vLLM's does."""

    status = 400
    kind = "BadRequestError"
    _NO_VALUE: Any = object()

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = _NO_VALUE) -> None:
        if parameter is not None:
            suffix = "" if value is self._NO_VALUE else f", value={value}"
            message = f"{message} (parameter={parameter}{suffix})"
        super().__init__(message, parameter=parameter)

    def about(self, parameter: str) -> ValidationError:
        """The same fault as one of another parameter, for whoever has given a value under that name."""
        text = self.message.partition(f" (parameter={self.parameter}")[0]
        return ValidationError(
            re.sub(rf"^(The grammar of )?{self.parameter}\b", rf"\1{parameter}", text), parameter=parameter
        )


class ContextLengthError(ValidationError):
    """Prompt and answer together are longer than the context."""

    code = "context_length_exceeded"


class NotFoundError(RequestError):
    """The model (or another named thing) does not exist."""

    status = 404
    kind = "NotFoundError"


class UnavailableError(RequestError):
    """The server cannot take the request now: loading, full, shutting down, or the engine is dead."""

    status = 503
    kind = "ServiceUnavailableError"
    reason = "unavailable"  # one word for the log, which counts refusals by it

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, retry_after=retry_after)


class EngineDeadError(UnavailableError):
    """The engine process ended; every running request ends with this."""

    reason = "dead"


class EngineError(RequestError):
    """One request failed inside the engine; the others went on."""


class StartupError(OctavoError):
    """The start stops with this one line: bad option, bad model directory, too little memory."""


class ConfigError(StartupError, ValueError):
    """An option, YAML key or keyword argument is wrong."""


class LoadError(StartupError):
    """A checkpoint cannot be read as the model it says it is."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to say behind the refusal of an unknown name: the nearest known one, or that which it begins, if there is one."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1) or [each for each in names if len(name) > 2 and each.startswith(name)]
    return f"; did you mean {near[0]}?" if near else ""
