"""From the items of the Responses API to the messages and tools of chat completions, and back to be gone on with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.server.members import refuse, text_member
from octavo.server.responses.schema import FunctionCallItem, Item, MessageItem, ReasoningItem

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "refusal")


def chat_messages(given: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages that the items mean; calls and thoughts that follow each other are one message of the assistant.

    ValidationError, with the item's path, for one that is malformed or of a kind that no text model can read.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        where = f"input[{i}]"
        match item.get("type", "message"):
            case "message":
                _add_message(messages, where, item)
            case "function_call":
                _add_call(messages, where, item)
            case "function_call_output":
                _add_result(messages, where, item)
            case "reasoning":
                thoughts = _texts(f"{where}.content", item.get("content") or [])
                _assistant(messages, begins=True)["reasoning_content"] = thoughts
            case kind:
                refuse(f"{where}.type", f"{kind!r:.80} is not supported; give messages, function calls and their outputs")
    return messages


def chat_tools(tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Functions as chat completions have them. ValidationError for tools that OpenAI's servers would run."""
    converted = []
    for i, tool in enumerate(tools):
        if tool.get("type") != "function":
            kind = f"{tool.get('type')!r:.80}"
            refuse(f"tools[{i}].type", f"{kind} is not supported; give functions, which the client runs")
        function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
        if tool.get("strict") and "parameters" in function:
            function["strict"] = True
        converted.append({"type": "function", "function": function})
    return converted


def chat_tool_choice(choice: Any) -> Any:
    """The choice in the words of chat completions."""
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def answer_messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """What the model said, as messages of the conversation that goes on from it."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item:
            case MessageItem(content=texts):
                _assistant(messages)["content"] = "".join(text.text for text in texts)
            case ReasoningItem(content=thoughts):
                _assistant(messages)["reasoning_content"] = "".join(thought.text for thought in thoughts)
            case FunctionCallItem(call_id=id, name=name, arguments=arguments):
                _append_call(_assistant(messages), id, name, arguments)
    return messages


def _add_message(messages: list[dict[str, Any]], where: str, item: dict[str, Any]) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        refuse(f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {role!r:.80}")
    text = content if isinstance(content, str) else _texts(f"{where}.content", content)
    if role == "assistant" and messages and _is_thought(messages[-1]):
        messages[-1]["content"] = text
    else:
        messages.append({"role": role, "content": text})


def _is_thought(message: dict[str, Any]) -> bool:
    """Whether a message has nothing yet but what the assistant thought before it."""
    return message.keys() == {"role", "content", "reasoning_content"} and message["content"] is None


def _add_call(messages: list[dict[str, Any]], where: str, item: dict[str, Any]) -> None:
    id, name, arguments = (text_member(where, item, member) for member in ("call_id", "name", "arguments"))
    _append_call(_assistant(messages), id, name, arguments)


def _append_call(message: dict[str, Any], id: str, name: str, arguments: str) -> None:
    function = {"name": name, "arguments": arguments}
    message.setdefault("tool_calls", []).append({"id": id, "type": "function", "function": function})


def _add_result(messages: list[dict[str, Any]], where: str, item: dict[str, Any]) -> None:
    output = item.get("output")
    text = output if isinstance(output, str) else _texts(f"{where}.output", output)
    messages.append({"role": "tool", "tool_call_id": text_member(where, item, "call_id"), "content": text})


def _assistant(messages: list[dict[str, Any]], *, begins: bool = False) -> dict[str, Any]:
    """The assistant's message at the end, which is made if there is none, or if a new one `begins`."""
    if begins or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _texts(where: str, parts: Any) -> str:
    if not isinstance(parts, list):
        refuse(where, "must be text or a list of parts")
    texts = []
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in (*_TEXTS, "reasoning_text"):
            refuse(f"{where}[{i}]", f"is of type {kind!r:.80}, which this model cannot read; give text")
        texts.append(text_member(f"{where}[{i}]", part, "refusal" if kind == "refusal" else "text"))
    return "".join(texts)
