"""What a chat request says about tools: its checks, and which calls its answer may have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import ValidationError
from octavo.grammar.json_schema import enforceable
from octavo.parsing.formats import OutputFormats
from octavo.parsing.tools.base import CallForm, ToolParser
from octavo.parsing.tools.forced import (
    GENERIC_FORM,
    NamedCallParser,
    arguments_schema,
    calls_tag,
    json_forms,
    message_tag,
    strict_tag,
)
from octavo.parsing.tools.json import JsonParser
from octavo.sampling.structured import StructuredOutputsParams
from octavo.server.members import refuse
from octavo.server.openai.documented import MAX_TOOLS


@dataclass(frozen=True)
class ToolChoice:
    """`functions`: name -> schema of its parameters, of each tool offered; empty without tools. `mode` none | auto |
    required | function; `name` goes with the last. `strict`: functions whose arguments must be by their schemas."""

    functions: Mapping[str, Mapping[str, Any]]
    mode: str = "none"
    name: str | None = None
    strict: frozenset[str] = frozenset()
    only_one_call: bool = False

    def parser(self, formats: OutputFormats) -> ToolParser | None:
        """A new parser of the answer's calls; None where there can be none."""
        if self.mode == "function":
            return NamedCallParser(self.functions, self.name or "")
        if self.mode == "required" and _forced(formats) == (GENERIC_FORM,):
            return JsonParser(self.functions)
        return formats.tools(self.functions) if self.mode != "none" and formats.tools is not None else None

    def constrained(self, asked: StructuredOutputsParams | None, formats: OutputFormats) -> StructuredOutputsParams | None:
        """What the text must be, for a request that has asked for `asked`. ValidationError where it cannot be both."""
        if self.mode in ("required", "function"):
            if asked is not None:
                text = "`response_format` and `structured_outputs` cannot go with a `tool_choice` that forces a call."
                raise ValidationError(text, parameter="tool_choice")
            if self.mode == "function":
                return StructuredOutputsParams(json=arguments_schema(self.functions[self.name or ""]))
            return _tagged(calls_tag(self.functions, _forced(formats), only_one=self.only_one_call))
        if self.mode == "none" or not self.strict:
            return asked
        if not formats.forms:
            text = f"`strict` of a function cannot be enforced in this model's format of calls ({formats.name})."
            raise ValidationError(f"{text} Leave it out, or give false.", parameter="tools")
        if formats.messages is not None:
            if asked is not None:
                text = f"`strict` of a function cannot go with a response format in this model's format ({formats.name})."
                raise ValidationError(text, parameter="tools")
            return _tagged(message_tag(self.functions, formats.forms, formats.messages, self.strict))
        if asked is None:
            return _tagged(strict_tag(self.functions, formats.forms, self.strict, only_one=self.only_one_call))
        schema = asked.json if asked.json is not None else {"type": "object"}
        if asked.given[0] not in ("json", "json_object") or isinstance(schema, str):
            text = "Functions with `strict` can go only with a response format of JSON."
            raise ValidationError(text, parameter="tools")
        calls = calls_tag(self.functions, formats.forms, only_one=self.only_one_call)
        return _tagged({"type": "or", "elements": [{"type": "json_schema", "json_schema": schema}, calls]})

    def covers_reasoning(self, formats: OutputFormats) -> bool:
        """Whether what `constrained` says is about the whole answer, its reasoning included."""
        return self.mode == "auto" and bool(self.strict) and formats.messages is not None

    def blamed(self, error: ValidationError) -> ValidationError:
        """An error of the grammar that `constrained` made, as one of the function whose schema is at fault; the error
        itself where that cannot be told."""
        bound = {"auto": self.strict, "function": {self.name}}.get(self.mode, self.functions)
        for i, (name, parameters) in enumerate(self.functions.items()):
            try:
                if name in bound:
                    enforceable(arguments_schema(parameters))
            except ValidationError as own:
                return own.about(f"tools[{i}].function.parameters")
        return error


def _forced(formats: OutputFormats) -> tuple[CallForm, ...]:
    """The forms in which calls are forced."""
    return json_forms(() if formats.messages is not None else formats.forms)


def _tagged(format: dict[str, Any]) -> StructuredOutputsParams:
    return StructuredOutputsParams(structural_tag=json.dumps({"type": "structural_tag", "format": format}))


def read_tools(
    tools: Sequence[Any] | None, choice: Any, *, looks_for_calls: bool, only_one_call: bool = False
) -> ToolChoice:
    """The tools and the choice among them, with an empty list of tools as none and, without tools, a choice of none or auto
    as no choice. `looks_for_calls` is whether the server does so where none is forced.

    ValidationError, with the parameter, for whatever is malformed, contradictory or not supported.
    """
    found = [_function(f"tools[{i}]", tool) for i, tool in enumerate(_bounded(tools or ()))]
    functions = {name: parameters for name, parameters, _ in found}
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
    strict = frozenset(name for name, _, is_strict in found if is_strict)
    return ToolChoice(functions, mode, name, strict, only_one_call)


def _bounded(tools: Sequence[Any]) -> Sequence[Any]:
    if len(tools) > MAX_TOOLS:
        refuse("tools", f"can have at most {MAX_TOOLS} entries, got {len(tools)}")
    return tools


def _function(where: str, tool: Any) -> tuple[str, Mapping[str, Any], bool]:
    if not isinstance(tool, dict):
        refuse(where, "must be an object with type and function")
    if tool.get("type", "function") != "function":
        refuse(f"{where}.type", "must be 'function'")
    function = tool.get("function")
    if not isinstance(function, dict):
        refuse(f"{where}.function", "must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        refuse(f"{where}.function.name", "must be a name")
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        refuse(f"{where}.function.parameters", "must be a JSON schema")
    if not isinstance(function.get("strict"), bool | None):
        refuse(f"{where}.function.strict", "must be true or false")
    return name, parameters or {}, bool(function.get("strict"))


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
