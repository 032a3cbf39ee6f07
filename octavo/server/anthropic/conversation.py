"""From the blocks of the Messages API to the messages and tools of chat completions, which templates know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from octavo.server.anthropic.schema import CountTokensRequest, Message, Tool, ToolChoice
from octavo.server.members import refuse, text_member


def chat_messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    """The conversation. ValidationError, with the block's path, for one that is malformed or of a kind that no text model
    can read."""
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text("system", body.system)})
    for i, message in enumerate(body.messages):
        messages += _turn(f"messages[{i}].content", message)
    return messages


def chat_tools(tools: Iterable[Tool] | None) -> list[dict[str, Any]] | None:
    """The tools. ValidationError for those that Anthropic's servers would run."""
    if tools is None:
        return None
    converted = []
    for i, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            refuse(f"tools[{i}].type", f"{tool.type!r:.80} is not supported; give custom tools, which the client runs")
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.strict:
            function["strict"] = True
        converted.append({"type": "function", "function": function})
    return converted


def chat_tool_choice(choice: ToolChoice | None) -> Any:
    """The choice in the words of chat completions."""
    if choice is None:
        return None
    if choice.type == "tool":
        if not choice.name:
            refuse("tool_choice.name", "must name a tool")
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _turn(where: str, message: Message) -> list[dict[str, Any]]:
    """One message, or several where a user's turn begins with results of tools."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    blocks = list(enumerate(message.content))
    if message.role == "assistant":
        return [_assistant(where, blocks)]
    results = [(i, block) for i, block in blocks if block.get("type") == "tool_result"]
    others = [(i, block) for i, block in blocks if block.get("type") != "tool_result"]
    turn = [_result(f"{where}[{i}]", block) for i, block in results]
    if others:
        texts = [{"type": "text", "text": _block_text(f"{where}[{i}]", block)} for i, block in others]
        turn.append({"role": "user", "content": texts})
    return turn


def _assistant(where: str, blocks: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in blocks:
        match block.get("type"):
            case "thinking":
                thoughts.append(text_member(f"{where}[{i}]", block, "thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(f"{where}[{i}]", block))
            case _:
                texts.append(_block_text(f"{where}[{i}]", block))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(where: str, block: dict[str, Any]) -> dict[str, Any]:
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        refuse(f"{where}.input", "must be an object")
    function = {"name": text_member(where, block, "name"), "arguments": msgspec.json.encode(arguments).decode()}
    return {"id": text_member(where, block, "id"), "type": "function", "function": function}


def _result(where: str, block: dict[str, Any]) -> dict[str, Any]:
    content = block.get("content") or ""
    return {
        "role": "tool",
        "tool_call_id": text_member(where, block, "tool_use_id"),
        "content": _text(f"{where}.content", content),
    }


def _text(where: str, content: Any) -> str:
    """Text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(where, "must be text or a list of blocks")
    return "\n".join(_block_text(f"{where}[{i}]", block) for i, block in enumerate(content))


def _block_text(where: str, block: Any) -> str:
    if not isinstance(block, dict) or block.get("type") != "text":
        kind = block.get("type") if isinstance(block, dict) else block
        refuse(where, f"is of type {kind!r:.80}, which this model cannot read; give text")
    return text_member(where, block, "text")
