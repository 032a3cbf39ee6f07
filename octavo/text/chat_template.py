"""Chat templates: a conversation as the prompt text that the model was trained on."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, ValidationError

if TYPE_CHECKING:
    from jinja2 import Template

Message = dict[str, Any]

_CONTINUE_HERE = "\ue000octavo-continue\ue001 "
_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "self",
        "tokenize",
        "tools",
    }
)
# What an expression of a template may raise, beside jinja2's own errors.
_FAILURES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, NotImplementedError)


class ChatTemplate:
    """One model's template, or its named ones ("tool_use" is taken when tools are given). Compiled when first used.

    Runs in `octavo.text.sandbox`, which also bounds it. Rendering is what Transformers' `apply_chat_template` does.
    """

    def __init__(self, source: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        self._sources = {"default": source} if isinstance(source, str) else dict(source)
        self._special_tokens = dict(special_tokens or {})
        self._compiled: dict[str, Template] = {}
        self._lock = threading.Lock()

    def render(
        self,
        messages: Sequence[Message],
        /,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt. `messages` are as `octavo.text.messages.normalize_messages` returns them; `kwargs` are further
        variables of the template (`chat_template_kwargs` of a request).

        ValidationError with the template's own message where it refuses the conversation, for no messages, for a reserved
        name in `kwargs`, and for a template that costs more than it may.
        """
        if not messages:
            raise ValidationError("Cannot apply chat template to an empty conversation. Provide at least one message.")
        if continue_final_message and add_generation_prompt:
            raise ValidationError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        check_template_variables(kwargs)
        variables = {**self._special_tokens, **kwargs, "tools": tools or None, "documents": documents or None}
        if continue_final_message:
            text = self._run([*messages[:-1], _marked(messages[-1])], add_generation_prompt=False, **variables)
            return _until_mark(text)
        return self._run(messages, add_generation_prompt=add_generation_prompt, **variables)

    def check(self) -> None:
        """Compile now. ConfigError says what is wrong with the template, and in which line."""
        try:
            self._template(None)
        except ValidationError as error:
            raise ConfigError(error.message) from None

    @property
    def source(self) -> str:
        """The source that conversations without tools are rendered with; "" if there is none."""
        return self._sources.get("default", "")

    @property
    def tool_source(self) -> str:
        """The source that conversations with tools are rendered with; "" if there is none."""
        return self._sources.get("tool_use", self._sources.get("default", ""))

    @cached_property
    def knows_developer(self) -> bool:
        """Whether the role "developer" means something to it: it names the role, and prints such a message."""
        probe = [{"role": "developer", "content": "octavo-a"}, {"role": "user", "content": "octavo-b"}]
        return "developer" in self._source() and self._prints(probe, "octavo-a")

    @cached_property
    def takes_scattered_system(self) -> bool:
        """Whether system messages may be several and stand anywhere."""
        roles = ("system", "system", "user", "assistant", "system", "user")
        probe = [{"role": role, "content": f"octavo-{n}"} for n, role in enumerate(roles)]
        return self._prints(probe, *(f"octavo-{n}" for n in range(len(roles))))

    @cached_property
    def needs_parts(self) -> bool:
        """Whether it prints content only when that is a list of parts."""
        parts: Any = [{"type": "text", "text": "octavo-a"}]
        if self._prints([{"role": "user", "content": "octavo-a"}], "octavo-a"):
            return False
        return self._prints([{"role": "user", "content": parts}], "octavo-a")

    @cached_property
    def part_roles(self) -> frozenset[str]:
        """The roles whose content may be a list of parts, of which it prints one text after the other."""
        return frozenset(role for role in ("system", "developer", "user", "assistant", "tool") if self._prints_parts(role))

    def _prints_parts(self, role: str) -> bool:
        parts = [{"type": "text", "text": text} for text in ("octavo-p", "octavo-q")]
        ask = {"role": "user", "content": "octavo-b"}
        if role == "tool":
            probe = _calls_probe("octavo-a", "")
            probe[-1]["content"] = parts
        else:
            probe = [*([ask] if role == "assistant" else []), {"role": role, "content": parts}]
            probe += [ask] if role != "user" else []
        try:
            rendered = self.render(probe)
        except ValidationError:
            return False
        _, first, rest = rendered.partition("octavo-p")
        between, second, _ = rest.partition("octavo-q")
        return bool(first and second) and "type" not in between  # a list as such was not printed

    @cached_property
    def call_form(self) -> tuple[bool, bool]:
        """How it prints the calls of an earlier answer without content: (only if the content is null, only if the arguments
        are JSON as a text). (False, False) if it prints none at all."""
        forms = [(null, as_text) for as_text in (False, True) for null in (False, True)]
        probes = (_calls_probe("octavo-a", None if null else "", as_text=as_text) for null, as_text in forms)
        found = (form for form, probe in zip(forms, probes, strict=True) if self._prints(probe, "octavo_name", "octavo-a"))
        return next(found, (False, False))

    def _prints(self, messages: list[Message], *texts: str) -> bool:
        try:
            rendered = self.render(messages)
        except ValidationError:
            return False
        return all(text in rendered for text in texts)

    def _source(self, tools: Any = None) -> str:
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            names = ", ".join(sorted(self._sources)) or "none"
            raise ValidationError(f"The model has no chat template named 'default' (it has: {names})")
        return self._sources[name]

    def _template(self, tools: Any) -> Template:
        source = self._source(tools)
        with self._lock:
            compiled = self._compiled.get(source)
            if compiled is None:
                compiled = self._compiled[source] = _compile(source)
        return compiled

    def _run(self, messages: Sequence[Message], *, tools: Any, **variables: Any) -> str:
        template = self._template(tools)
        from jinja2 import TemplateError

        from octavo.text.sandbox import TemplateRaisedError
        from octavo.text.template_meter import metered

        try:
            with metered():
                return template.render(messages=messages, tools=tools, **variables)
        except TemplateRaisedError as error:
            raise ValidationError(str(error)) from None
        except (TemplateError, *_FAILURES) as error:
            raise ValidationError(f"The chat template failed on this request: {_described(error)}") from None


def _calls_probe(value: str, content: str | None, *, as_text: bool = False) -> list[Message]:
    arguments = {"key": value}
    function = {"name": "octavo_name", "arguments": json.dumps(arguments) if as_text else arguments}
    call = {"id": "octavo123", "type": "function", "function": function}
    return [
        {"role": "user", "content": "octavo-b"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "octavo123", "name": "octavo_name", "content": "octavo-c"},
    ]


def check_template_variables(names: Any) -> None:
    """ValidationError for `chat_template_kwargs` that are no mapping of names, or that would replace the conversation, the
    server's template or what fields of the request say."""
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
        raise ValidationError("chat_template_kwargs must map names to values", parameter="chat_template_kwargs")
    reserved = sorted(_RESERVED.intersection(names))
    if reserved:
        raise ValidationError(f"chat_template_kwargs cannot hold {', '.join(reserved)}", parameter="chat_template_kwargs")


def _compile(source: str) -> Template:
    from jinja2 import TemplateSyntaxError

    from octavo.text.sandbox import TemplateEnvironment
    from octavo.text.template_meter import metered

    try:
        with metered():
            return TemplateEnvironment().from_string(source)
    except TemplateSyntaxError as error:
        raise ValidationError(f"The chat template is not valid: line {error.lineno}: {error.message}") from None
    except RecursionError:
        raise ValidationError("The chat template is not valid: it is nested too deeply") from None


def _described(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _marked(message: Message) -> Message:
    """The message to continue, with a mark after its text."""
    content = message.get("content")
    if isinstance(content, list) and content and isinstance(content[-1], dict) and "text" in content[-1]:
        last = {**content[-1], "text": content[-1]["text"] + _CONTINUE_HERE}
        return {**message, "content": [*content[:-1], last]}
    if not isinstance(content, str):
        raise ValidationError("continue_final_message is set but the final message has no content to continue")
    return {**message, "content": content + _CONTINUE_HERE}


def _until_mark(text: str) -> str:
    position = text.rfind(_CONTINUE_HERE.strip())
    if position < 0:
        raise ValidationError(
            "continue_final_message is set but the chat template does not print the final message as it is"
        )
    kept_space = text.startswith(_CONTINUE_HERE, position)
    return text[:position] if kept_space else text[:position].rstrip()
