"""The formats in which the served model writes tool calls and reasoning, from the options and its chat template."""

from __future__ import annotations

import logging

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.parsing.formats import OutputFormats, output_formats, recognized_reasoning, recognized_tools

logger = logging.getLogger(__name__)


def model_formats(config: EngineConfig, intake: Intake) -> OutputFormats:
    """What to look for in this model's answers. What `auto` found is logged."""
    template = "" if intake.chat_template is None else intake.chat_template.tool_source
    tools = config.tool_call_parser if config.enable_auto_tool_choice else None
    reasoning = config.reasoning_parser
    if tools == "auto":
        tools = recognized_tools(template) or "json"
        _report("--tool-call-parser", recognized_tools(template), "calls are taken to be plain JSON (json)")
    if reasoning == "auto":
        reasoning = recognized_reasoning(template)
        _report("--reasoning-parser", reasoning, "no reasoning is looked for")
    return output_formats(tools, reasoning, pattern=config.tool_call_regex, tokenizer=intake.tokenizer)


def _report(flag: str, found: str | None, otherwise: str) -> None:
    if found is not None:
        logger.info("%s auto: the chat template speaks %s", flag, found)
    else:
        logger.warning("%s auto: the chat template speaks no known format, %s", flag, otherwise)
