"""What is wrong with a body, in pydantic's terms and words."""

from __future__ import annotations

from typing import Any, NamedTuple

from octavo.errors import RequestError

MAX_ISSUES = 100  # after which a list or mapping is not looked at further: each costs memory and time
MAX_ISSUES_SHOWN = 10
MAX_INPUT_SHOWN = 200  # characters of a string


class Issue(NamedTuple):
    """One thing wrong with a body, in pydantic's terms."""

    kind: str  # "int_parsing", "missing", ...
    location: str
    message: str
    value: Any
    context: dict[str, Any] | None = None


class SchemaError(RequestError):
    """The body does not fit the schema: 400 with the issues; `param` is the location of the first one."""

    status = 400
    kind = "Bad Request"

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__(_report(issues), parameter=issues[0].location)


def _report(issues: list[Issue]) -> str:
    lines = [f"{len(issues)} validation error{'s' if len(issues) > 1 else ''}:"]
    for issue in issues[:MAX_ISSUES_SHOWN]:
        shown = {"type": issue.kind, "loc": issue.location, "msg": issue.message, "input": _shown(issue.value)}
        if issue.context is not None:
            shown["ctx"] = issue.context
        lines.append(f"  {shown!r}")
    return "\n".join(lines)


def _shown(value: Any) -> Any:
    """The input as it may stand in an error text: containers by size, long strings and integers cut."""
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)} items>"
    if isinstance(value, str) and len(value) > MAX_INPUT_SHOWN:
        return value[:MAX_INPUT_SHOWN] + "..."
    if isinstance(value, int) and value.bit_length() > 256:
        return f"<int of {value.bit_length()} bits>"
    return value
