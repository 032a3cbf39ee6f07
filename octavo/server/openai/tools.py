"""What a chat request says about tools: its checks, and which calls its answer may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from octavo.errors import ValidationError

MAX_TOOLS = 1024


@dataclass(frozen=True)
class ToolChoice:
    """`functions`: name -> schema of its parameters, of each tool offered; empty without tools. `mode` none | auto |
    required | function; `name` goes with the last."""

    functions: Mapping[str, Mapping[str, Any]]
    mode: str = "none"
    name: str | None = None

    @property
    def needs_grammar(self) -> bool:
        """Whether the answer has to be forced into the form of a call."""
        return self.mode in ("required", "function")


def read_tools(tools: Sequence[Any] | None, choice: Any, *, looks_for_calls: bool) -> ToolChoice:
    """The tools and the choice among them, with an empty list of tools as none and, without tools, a choice of none or auto
    as no choice. `looks_for_calls` is whether the server does so at all.

    ValidationError, with the parameter, for whatever is malformed, contradictory or not supported.
    """
    functions = dict(_function(f"tools[{i}]", tool) for i, tool in enumerate(_bounded(tools or ())))
    mode, name = _mode(choice, bool(functions))
    if not functions:
        if mode in ("required", "function"):
            raise ValidationError("When using `tool_choice`, `tools` must be set.", parameter="tool_choice")
        return ToolChoice({})
    if name is not None and name not in functions:
        text = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise ValidationError(text, parameter="tool_choice")
    if mode == "auto" and not looks_for_calls:
        raise ValidationError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    result = ToolChoice(functions, mode, name)
    if result.needs_grammar:
        text = 'A `tool_choice` that forces a call is not supported by this version of the server. Use "auto" or "none".'
        raise ValidationError(text, parameter="tool_choice")
    return result


def _bounded(tools: Sequence[Any]) -> Sequence[Any]:
    if len(tools) > MAX_TOOLS:
        _refuse("tools", f"can have at most {MAX_TOOLS} entries, got {len(tools)}")
    return tools


def _function(where: str, tool: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(tool, dict):
        _refuse(where, "must be an object with type and function")
    if tool.get("type", "function") != "function":
        _refuse(f"{where}.type", "must be 'function'")
    function = tool.get("function")
    if not isinstance(function, dict):
        _refuse(f"{where}.function", "must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        _refuse(f"{where}.function.name", "must be a name")
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        _refuse(f"{where}.function.parameters", "must be a JSON schema")
    if function.get("strict"):
        _refuse(f"{where}.function.strict", "is not supported by this version of the server. Leave it out, or give false")
    return name, parameters or {}


def _mode(choice: Any, has_tools: bool) -> tuple[str, str | None]:
    if choice is None:
        return ("auto" if has_tools else "none"), None
    if choice in ("none", "auto", "required"):
        return choice, None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        text = f"Invalid value for `tool_choice`: {choice!s:.100}!"
        rule = 'Only named tools, "none", "auto" or "required" are supported.'
        raise ValidationError(f"{text} {rule}", parameter="tool_choice")
    return "function", name


def _refuse(where: str, rule: str) -> NoReturn:
    raise ValidationError(f"{where} {rule}.", parameter=where)
