"""Live against Transformers: the stored values, many more texts and conversations, and public models' templates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ValidationError
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from tests.golden.derive_text import FILE, derive, reference_tokenizer
from tests.text.public import llama_cpp_models

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

WORDS = [
    "the", " harbour", "1234", " 3.14", "\n", "\n\n", "\t", "  ", "Gr\u00fc\u00dfe", "e\u0301", " \u6771\u4eac",
    "\U0001f642", "\U0001f469\u200d\U0001f467", "'s", "'LL", "<|im_start|>", "<|im_end|>", "<repo_name>", "def f(x):",
    "\u0e44\u0e17\u0e22", "!!!", "\u00bd", "\u0663", "\r\n", "\u00a0", "\ufeff", "\u0000", "_snake_case", "CamelCase", "http://a.b/c?d=e",
]  # fmt: skip


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    return reference_tokenizer(smollm2)


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


def texts(count: int) -> list[str]:
    rng = random.Random(5)
    return ["".join(rng.choices(WORDS, k=rng.randrange(1, 20))) for _ in range(count)]


def test_the_stored_values_are_still_what_transformers_gives() -> None:
    assert json.loads(FILE.read_text("utf-8")) == derive()


def test_ids_and_texts(smol: Tokenizer, reference: Any) -> None:
    for text in texts(500):
        ids = reference(text)["input_ids"]
        assert smol.encode(text) == ids
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert smol.decode(ids, skip_special_tokens=skip) == expected


def test_random_ids(smol: Tokenizer, reference: Any) -> None:
    rng = random.Random(6)
    for _ in range(500):
        ids = [rng.randrange(49_152) for _ in range(rng.randrange(1, 30))]
        expected = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert smol.decode(ids) == expected


def conversations(count: int) -> list[list[dict[str, Any]]]:
    rng = random.Random(7)
    found = []
    for content in texts(count):
        turns = [{"role": "system", "content": "Be brief. "}] if rng.random() < 0.5 else []
        for _ in range(rng.randrange(0, 3)):
            turns += [{"role": "user", "content": rng.choice(WORDS)}, {"role": "assistant", "content": content}]
        found.append([*turns, {"role": "user", "content": content}])
    return found


def test_conversations(smol: Tokenizer, reference: Any) -> None:
    template = ChatTemplate(smol.chat_templates, smol.special_tokens)
    for messages in conversations(100):
        for prompt in (True, False):
            expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert template.render(messages, add_generation_prompt=prompt) == expected
        last = [*messages, {"role": "assistant", "content": "It is"}]
        expected = reference.apply_chat_template(last, tokenize=False, continue_final_message=True)
        assert template.render(last, add_generation_prompt=False, continue_final_message=True) == expected


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & later",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln"}}}
DIALOGUES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi "}]},
    {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
            {"role": "user", "content": "More"},
        ]
    },
    {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS},
    {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"sun": true}'},
        ],
        "tools": TOOLS,
    },
    {"messages": [{"role": "user", "content": "Think"}], "enable_thinking": False},
]


@pytest.mark.nightly
def test_public_templates_render_as_in_transformers(tmp_path_factory: pytest.TempPathFactory, reference: Any) -> None:
    """The official templates that the source distribution of llama_cpp_python carries."""
    compared = 0
    files = sorted((llama_cpp_models(tmp_path_factory) / "templates").glob("*.jinja"))
    for file in files:
        source = file.read_text("utf-8")
        template = ChatTemplate(source, reference.special_tokens_map)
        for dialogue in DIALOGUES:
            messages = dialogue["messages"]
            variables = {name: value for name, value in dialogue.items() if name != "messages"}
            options = {"chat_template": source, "tokenize": False, "add_generation_prompt": True, **variables}
            try:
                expected = reference.apply_chat_template(messages, **options)
            except Exception:  # the template refuses the dialogue; so must ours
                with pytest.raises(ValidationError):
                    template.render(messages, **variables)
                continue
            assert template.render(messages, **variables) == expected, file.name
            compared += 1
    assert len(files) > 60
    assert compared > 4 * len(files)
