"""The official chat templates of many models: `auto` knows their format, and reads the calls that they print themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.parsing.formats import output_formats, recognized_reasoning, recognized_tools
from octavo.parsing.parts import reasoning_and_calls
from octavo.text.chat_template import ChatTemplate
from octavo.text.messages import normalize_messages
from tests.text.public import llama_cpp_models

pytestmark = pytest.mark.nightly

# Template -> formats of calls and reasoning. Those that are not here speak none that is known.
KNOWN: dict[str, tuple[str | None, str | None]] = {
    "Bielik-11B-v3.0-Instruct": ("hermes", "qwen3"),
    "ByteDance-Seed-OSS": ("qwen3_coder", "seed_oss"),
    "GLM-4.6": ("glm45", "qwen3"),
    "GLM-4.7-Flash": ("glm45", "qwen3"),
    "HuggingFaceTB-SmolLM3-3B": (None, "qwen3"),
    "LFM2.5-8B-A1B": ("pythonic", "qwen3"),
    "MiMo-VL": ("hermes", None),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3_coder", "qwen3"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-QwQ-32B": ("hermes", "qwen3"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", "qwen3"),
    "Reka-Edge": ("hermes", "qwen3"),
    "StepFun3.5-Flash": ("qwen3_coder", "qwen3"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "qwen3"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "qwen3"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "qwen3"),
    "deepseek-ai-DeepSeek-V3.2": (None, "qwen3"),
    "google-gemma-4-31B-it": ("gemma4", "gemma4"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "qwen3"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "ibm-granite-granite-4.1": ("hermes", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3_json", None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "openai-gpt-oss-120b": ("openai", "openai_gptoss"),
    "unsloth-Apriel-1.5": ("hermes", None),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", None),
}
UNKNOWN = (
    "Kimi-K2-Instruct",
    "MiniMax-M3",
    "LFM2-8B-A1B",
    "meetkai-functionary-medium-v3.1",
    "microsoft-Phi-3.5-mini-instruct",
)
PRINTS_NO_CALLS = {"ibm-granite-granite-3.3-2B-Instruct"}
ONE_CALL = {"openai-gpt-oss-120b", *(name for name in KNOWN if name.startswith("meta-llama"))}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
TOOLS = {"get_weather": PARAMETERS, "now": {"type": "object", "properties": {}}}
CALLS = [("get_weather", {"city": "Zürich", "days": 3, "metric": True, "tags": ["a", 'b "q" <x>']}), ("now", {})]


def source(factory: pytest.TempPathFactory, name: str) -> str:
    folder: Path = llama_cpp_models(factory) / "templates"
    return (folder / f"{name}.jinja").read_text()


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_the_format_is_recognized(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    text = source(tmp_path_factory, name)
    if name in KNOWN:
        assert (recognized_tools(text), recognized_reasoning(text)) == KNOWN[name]
    else:
        assert recognized_tools(text) is None


@pytest.mark.parametrize("name", [name for name, (tools, _) in KNOWN.items() if tools and name not in PRINTS_NO_CALLS])
def test_the_calls_that_it_prints_are_read(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    text = source(tmp_path_factory, name)
    calls = CALLS[:1] if name in ONE_CALL else CALLS
    template = ChatTemplate(text, {"bos_token": "<BOS>", "eos_token": "<EOS>"})
    formats = output_formats(recognized_tools(text), recognized_reasoning(text))
    assert formats.tools is not None
    answer = formats.answer("", None, formats.tools(TOOLS))
    assert answer is not None
    parts = answer.push(printed(template, calls)) + answer.finish(is_cut=True)
    _, found = reasoning_and_calls(parts)
    found = found[: len(calls)]  # gpt-oss's results have the form of calls
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


def printed(template: ChatTemplate, calls: list[tuple[str, Any]]) -> str:
    """What stands in the prompt of a later turn where the answer with these calls was, and a little behind it."""
    tools = [{"type": "function", "function": {"name": n, "description": n, "parameters": p}} for n, p in TOOLS.items()]
    ask = [{"role": "user", "content": "Hello"}]
    made = [
        {"id": f"abcdefgh{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "RESULT"} for call in made
    ]
    history = [*ask, {"role": "assistant", "content": None, "tool_calls": made}, *results]
    whole = template.render(normalize_messages(history, template), tools, add_generation_prompt=False)
    before = template.render(normalize_messages(ask, template), tools)
    start = next(i for i, (a, b) in enumerate(zip(whole, before + "\0", strict=False)) if a != b)
    if start < len(before):  # the prompt of a new answer ends otherwise: not inside of a mark
        start = max(whole.rfind(end, 0, start) + 1 for end in (">", "\n", "]"))
    return whole[start : whole.index("RESULT", start)]
