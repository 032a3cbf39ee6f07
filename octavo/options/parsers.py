"""The names of the formats in which models write tool calls and reasoning (vLLM's, and a few more)."""

from __future__ import annotations

TOOL_PARSERS = (
    "auto",
    "deepseek_v3",
    "deepseek_v31",
    "functiongemma",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "granite4",
    "hermes",
    "json",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "mistral",
    "openai",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "qwen3_xml",
    "raw",
    "regex",
    "seed_oss",
)
REASONING_PARSERS = (
    "auto",
    "deepseek_r1",
    "deepseek_v3",
    "gemma4",
    "glm45",
    "granite",
    "mistral",
    "openai_gptoss",
    "qwen3",
    "seed_oss",
)
