"""OpenAI chat messages, checked and brought into the form that chat templates expect.

The rules, for every role:

- Content parts of type text stay parts for a template that prints those of this role one by one, else they become one
  string, joined by a newline (both as vLLM does). No parts, or null where it is allowed (assistant messages), become "". A
  part of any other type is refused by name: the models served here read text only.
- `arguments` of a tool call become a mapping. An empty text becomes {}; a text that is no JSON object is passed on as it
  is, so that a history with a model's broken call can still be continued. An empty `tool_calls` is dropped.
- For a template that prints calls only of messages whose content is null, or with arguments as a text, they are so.
- `developer` becomes `system` for a template that does not know the role. Several system messages, or one that is not
  the first, are merged (joined by an empty line) at the front for a template that does not take them otherwise.
  With `fold_system` (`--fold-system-message`) they become the beginning of the first user message.
- A tool message without `tool_call_id` is accepted.
- An earlier answer's reasoning is given under each name that templates use (`reasoning_content`, `reasoning`, `thinking`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from octavo.errors import ValidationError
from octavo.text.chat_template import ChatTemplate, Message

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
PART_JOINER = "\n"
SYSTEM_JOINER = "\n\n"
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_PARTS = "octavo-parts"  # in messages, until they are done: the parts that the content was made of
_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")


def normalize_messages(messages: Sequence[Any], template: ChatTemplate, *, fold_system: bool = False) -> list[Message]:
    """The messages for `template`; the input is left as it is. ValidationError names `messages[i].field`."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        _refuse("messages", "must be a list of messages", messages)
    normal = [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    if any(message["role"] == "developer" for message in normal) and not template.knows_developer:
        normal = [{**m, "role": "system"} if m["role"] == "developer" else m for m in normal]
    if fold_system:
        normal = _without_system(normal)
    if _has_scattered_system(normal) and not template.takes_scattered_system:
        normal = _system_first(normal)
    if any("tool_calls" in message for message in normal):
        normal = [_with_calls(message, *template.call_form) for message in normal]
    return [_with_parts(message, template) for message in normal]


def _message(where: str, message: Any) -> Message:
    if not isinstance(message, dict):
        _refuse(where, "must be an object with role and content", message)
    role = message.get("role")
    if role not in ROLES:
        _refuse(f"{where}.role", f"must be one of {', '.join(ROLES)}", role, missing="role" not in message)
    # What is null is as good as absent.
    normal = {name: value for name, value in message.items() if value is not None and name != _PARTS}
    texts = _content(f"{where}.content", message, role)
    normal["content"] = PART_JOINER.join(texts)
    if isinstance(message.get("content"), list) and texts:
        normal[_PARTS] = [_text_part(text) for text in texts]
    for name in ("name", "tool_call_id"):
        if not isinstance(normal.get(name, ""), str):
            _refuse(f"{where}.{name}", "must be a string", normal[name])
    if role == "assistant":
        calls = _tool_calls(f"{where}.tool_calls", normal.pop("tool_calls", []))
        normal.update({"tool_calls": calls} if calls else {})
        reasoning = next((normal[name] for name in _REASONING_NAMES if name in normal), None)
        normal.update(dict.fromkeys(_REASONING_NAMES, reasoning) if reasoning is not None else {})
    return normal


def _content(where: str, message: dict[str, Any], role: str) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if content is None and role == "assistant":
        return []
    if not isinstance(content, list):
        _refuse(where, "must be a string or a list of content parts", content, missing="content" not in message)
    return [_part(f"{where}[{i}]", part) for i, part in enumerate(content)]


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        _refuse(where, "must be an object with a type", part)
    kind = part.get("type")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        _refuse(f"{where}.type", "must be text, as this model takes only text", kind, missing="type" not in part)
    if not isinstance(part.get(field), str):
        _refuse(f"{where}.{field}", "must be a string", part.get(field), missing=field not in part)
    return str(part[field])


def _tool_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        _refuse(where, "must be a list of tool calls", calls)
    return [_tool_call(f"{where}[{i}]", call) for i, call in enumerate(calls)]


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        _refuse(f"{where}.function", "must be an object with name and arguments", function)
    if not isinstance(function.get("name"), str):
        _refuse(f"{where}.function.name", "must be a string", function.get("name"), missing="name" not in function)
    arguments = _arguments(function.get("arguments"))
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _with_calls(message: Message, null_content: bool, text_arguments: bool) -> Message:
    """The message with its calls as the template prints them."""
    if "tool_calls" not in message:
        return message
    calls = message["tool_calls"]
    if text_arguments:
        texts = [_json_text(call["function"]["arguments"]) for call in calls]
        calls = [{**c, "function": {**c["function"], "arguments": text}} for c, text in zip(calls, texts, strict=True)]
    content = None if null_content and not message["content"] else message["content"]
    return {**message, "content": content, "tool_calls": calls}


def _with_parts(message: Message, template: ChatTemplate) -> Message:
    """Parts again, if there were some and the template takes them, or if it takes nothing else."""
    parts = message.pop(_PARTS, None)
    if template.needs_parts:
        return {**message, "content": parts or [_text_part(message["content"] or "")]}
    return {**message, "content": parts} if parts and message["role"] in template.part_roles else message


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arguments(arguments: Any) -> Any:
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _has_scattered_system(messages: list[Message]) -> bool:
    return any(message["role"] == "system" for message in messages[1:])


def _system_first(messages: list[Message]) -> list[Message]:
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": SYSTEM_JOINER.join(texts)}, *others]


def _without_system(messages: list[Message]) -> list[Message]:
    texts = [message["content"] for message in messages if message["role"] == "system" and message["content"]]
    others = [message for message in messages if message["role"] != "system"]
    place = next((i for i, message in enumerate(others) if message["role"] == "user"), None)
    if not texts:
        return others
    if place is None:
        return [{"role": "user", "content": SYSTEM_JOINER.join(texts)}, *others]
    return [*others[:place], _begun_with(SYSTEM_JOINER.join(texts) + SYSTEM_JOINER, others[place]), *others[place + 1 :]]


def _begun_with(text: str, message: Message) -> Message:
    begun = {**message, "content": text + message["content"]}
    return {**begun, _PARTS: [_text_part(text), *message[_PARTS]]} if _PARTS in message else begun


def _refuse(where: str, rule: str, value: Any, *, missing: bool = False) -> NoReturn:
    shown = "nothing" if missing else _shown(value)
    raise ValidationError(f"{where} {rule}, got {shown}.", parameter=where)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:60]}..."
