"""The formats by their names, and which of them a chat template speaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from octavo.options.parsers import REASONING_PARSERS, TOOL_PARSERS
from octavo.parsing import reasoning
from octavo.parsing.answer import AnswerParser
from octavo.parsing.reasoning import ReasoningParser
from octavo.parsing.tools.base import CallForm, MessageForm, ToolParser, Tools
from octavo.parsing.tools.deepseek import DeepSeekParser
from octavo.parsing.tools.gemma import FunctionGemmaParser, Gemma4Parser
from octavo.parsing.tools.glm45 import Glm45Parser
from octavo.parsing.tools.granite import GraniteParser
from octavo.parsing.tools.hermes import HermesParser
from octavo.parsing.tools.json import JsonParser
from octavo.parsing.tools.llama3_json import Llama3JsonParser
from octavo.parsing.tools.mistral import MistralParser
from octavo.parsing.tools.openai import OpenAIParser
from octavo.parsing.tools.phi4_mini_json import Phi4MiniParser
from octavo.parsing.tools.pythonic import PythonicParser
from octavo.parsing.tools.qwen3_coder import Qwen3CoderParser
from octavo.parsing.tools.raw import RawParser
from octavo.parsing.tools.regex import RegexParser

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

_TOOLS: Mapping[str, type[ToolParser]] = {
    "deepseek_v3": DeepSeekParser,
    "deepseek_v31": DeepSeekParser,
    "functiongemma": FunctionGemmaParser,
    "gemma4": Gemma4Parser,
    "glm45": Glm45Parser,
    "glm47": Glm45Parser,
    "granite": GraniteParser,
    "granite4": HermesParser,
    "hermes": HermesParser,
    "json": JsonParser,
    "llama3_json": Llama3JsonParser,
    "llama4_json": Llama3JsonParser,
    "llama4_pythonic": PythonicParser,
    "mistral": MistralParser,
    "openai": OpenAIParser,
    "phi4_mini_json": Phi4MiniParser,
    "pythonic": PythonicParser,
    "qwen3_coder": Qwen3CoderParser,
    "qwen3_xml": Qwen3CoderParser,
    "raw": RawParser,
    "seed_oss": Qwen3CoderParser,
}
_REASONING: Mapping[str, type[ReasoningParser]] = {
    "deepseek_r1": reasoning.DeepSeekR1Reasoning,
    "deepseek_v3": reasoning.TagReasoning,
    "gemma4": reasoning.Gemma4Reasoning,
    "glm45": reasoning.TagReasoning,
    "granite": reasoning.GraniteReasoning,
    "mistral": reasoning.MistralReasoning,
    "openai_gptoss": reasoning.HarmonyReasoning,
    "qwen3": reasoning.TagReasoning,
    "seed_oss": reasoning.SeedReasoning,
}
assert {*_TOOLS, "auto", "regex"} == set(TOOL_PARSERS), "every name of the option is a format, and no other"
assert {*_REASONING, "auto"} == set(REASONING_PARSERS), "every name of the option is a format, and no other"

# What a template has in it that prints calls, or tells the model how to write them, in a format; None is one that is not
# read here, though the signs below it fit. The first that fits.
_TOOL_SIGNS: tuple[tuple[str, str | None], ...] = (
    ("<|channel|>", "openai"),
    ("<｜tool▁call▁begin｜>", "deepseek_v3"),
    ("<arg_key>", "glm45"),
    ("<parameter=", "qwen3_coder"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_call>call:", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("functools[", "phi4_mini_json"),
    ("<|/tool_call|>", "phi4_mini_json"),
    ("<|tool|>", "phi4_mini_json"),
    ("<|tool_call|>", "granite"),
    ("<invoke ", None),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "llama4_pythonic"),
    ("<|tool_call_start|>", "pythonic"),
    ("<function=", None),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
)
_REASONING_SIGNS = (
    ("<|channel|>", "openai_gptoss"),
    ("[THINK]", "mistral"),
    ("<|channel>", "gemma4"),
    ("Here is my thought process", "granite"),
    ("<seed:think>", "seed_oss"),
    ("<think>", "qwen3"),
    ("</think>", "qwen3"),
)
_PYTHONIC_SIGN = re.compile(r"\[\w*func\w*\(\w+=\w+")  # as in "[func_name1(params_name1=params_value1, ...)]"


@dataclass(frozen=True)
class OutputFormats:
    """How a model marks tool calls and reasoning; None where it is not asked."""

    tools: Callable[[Tools], ToolParser] | None = None
    reasoning: Callable[[], ReasoningParser] | None = None
    forms: tuple[CallForm, ...] = ()
    """How the model writes calls, where a grammar can say it."""
    messages: MessageForm | None = None
    """Where they are messages among others."""
    name: str = ""
    """Of the format of calls."""
    shown_ids: frozenset[int] = frozenset()
    """The tokenizer's special tokens that are marks of either: the text must show them."""

    def answer(
        self, prompt: str, continued: str | None = None, calls: ToolParser | None = None, *, only_one_call: bool = False
    ) -> AnswerParser | None:
        """A parser for one answer to this prompt; None where there is nothing to look for. `continued` is the part of the
        prompt that the answer goes on from, `calls` a new parser of its calls (None: they are not looked for)."""
        reasoning = self._started(prompt, continued)
        if reasoning is None and calls is None:
            return None
        return AnswerParser(reasoning, calls, self.shown_ids, only_one_call=only_one_call)

    def grammar_start(self, prompt: str, continued: str | None = None) -> tuple[str, str]:
        """Where a grammar for the answer begins: behind the second mark ("": at its start). The first one opens the block
        that the second ends, where there may be one ("": the answer is in it, or has none)."""
        reasoning = self._started(prompt, continued)
        if reasoning is None:
            return "", ""
        return ("", reasoning.end_mark) if reasoning.end_mark else reasoning.marks

    def reasoning_marks(self, prompt: str, continued: str | None = None) -> tuple[str, str] | None:
        """What opens and closes the answer's reasoning (`ReasoningParser.marks`); None where it is not looked for."""
        reasoning = self._started(prompt, continued)
        return None if reasoning is None else reasoning.marks

    def _started(self, prompt: str, continued: str | None) -> ReasoningParser | None:
        if self.reasoning is None:
            return None
        reasoning = self.reasoning()
        reasoning.start(prompt, continued)
        return reasoning


def output_formats(
    tools: str | None,
    reasoning: str | None,
    *,
    pattern: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> OutputFormats:
    """The formats of these names (see `octavo.options.parsers`; not `auto`). `pattern` is the expression of `regex`."""
    if tools == "openai" and reasoning is None:
        reasoning = "openai_gptoss"  # its channels are one form
    kinds = [_TOOLS.get(tools or ""), _REASONING.get(reasoning or "")]
    marks = {mark for kind in kinds if kind is not None for mark in kind.special}
    special_ids = frozenset() if tokenizer is None else tokenizer.special_ids
    shown_ids = frozenset(id for id in special_ids if tokenizer is not None and tokenizer.token_text(id) in marks)
    kind = _TOOLS.get(tools or "")
    return OutputFormats(
        _tool_parser(tools, pattern),
        None if reasoning is None else _REASONING[reasoning],
        () if kind is None else kind.forms,
        None if kind is None else kind.messages,
        tools or "",
        shown_ids,
    )


def _tool_parser(name: str | None, pattern: str | None) -> Callable[[Tools], ToolParser] | None:
    if name is None:
        return None
    return partial(RegexParser, pattern=re.compile(pattern or "", re.DOTALL)) if name == "regex" else _TOOLS[name]


def recognized_tools(template: str) -> str | None:
    """The format of calls that a chat template speaks, if it is a known one."""
    found = next((name for sign, name in _TOOL_SIGNS if sign in template), None)
    if found == "deepseek_v3" and "```json" not in template:
        return "deepseek_v31"
    return found or ("pythonic" if _PYTHONIC_SIGN.search(template) else None)


def recognized_reasoning(template: str) -> str | None:
    """The form of reasoning that a chat template speaks, if it is a known one."""
    return next((name for sign, name in _REASONING_SIGNS if sign in template), None)
