"""From messages to the prompt's text, for chat and for `/tokenize`."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from msgspec import Meta

from octavo.errors import ValidationError
from octavo.server.exchange import Exchange
from octavo.server.state import Model, offload

TemplateVariables = Annotated[dict[str, Any], Meta(max_length=256)]


class Conversation(Protocol):
    """Fields of a body that shape the rendered prompt. (Structs cannot have two bases, so each body lists them.)"""

    messages: list[Any]
    add_generation_prompt: bool
    continue_final_message: bool
    tools: list[Any] | None
    documents: list[Any] | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None


async def render(
    model: Model, exchange: Exchange, body: Conversation, *, shows_tools: bool = True, reasoning_effort: Any = None
) -> str:
    """The prompt's text, with the tools if it `shows_tools`. The template may look at `reasoning_effort`, if it is given.

    ValidationError for messages that are none, and with the template's own words when it refuses.
    """
    if body.chat_template is not None and not model.trusts_request_templates:
        text = (
            "`chat_template` of a request is not trusted. Start the server with --chat-template to use another one, or with "
            "--trust-request-chat-template."
        )
        raise ValidationError(text, parameter="chat_template")

    effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
    variables = {**effort, **(body.chat_template_kwargs or {})}

    def work() -> str:
        return model.intake.render_chat(
            body.messages,
            chat_template=body.chat_template,
            tools=body.tools if shows_tools else None,
            documents=body.documents,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_variables=variables,
        )

    return await offload(exchange.num_body_bytes, work)


def continued_text(body: Conversation) -> str:
    """The text of the last message if it is the assistant's, which the answer goes on from."""
    last = body.messages[-1]
    content = last.get("content") if last.get("role") == "assistant" else None
    return content if isinstance(content, str) else ""
