"""Live against Transformers: the stored values, many more texts and conversations, and public models' templates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ValidationError
from octavo.text.chat_template import ChatTemplate
from octavo.text.messages import normalize_messages
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from tests.golden.derive_text import FILE, derive, reference_tokenizer
from tests.text.conversations import CONVERSATIONS
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


def rendered_by_transformers(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template([messages], chat_template=source, **{"add_generation_prompt": True, **options})
    return str(texts[0])


def compare(source: str) -> tuple[int, int]:
    """Every conversation by both: the same text, or the same refusal. How many gave a text, and how many were refused."""
    from jinja2.exceptions import TemplateError

    template = ChatTemplate(source, SPECIAL)
    refusals = 0
    for messages, options in CONVERSATIONS:
        refusal: Exception | None = None
        try:
            expected = rendered_by_transformers(source, messages, **SPECIAL, **options)
        except Exception as error:  # whatever an expression of the template raises
            refusal = error
        if refusal is None:
            assert template.render(messages, **options) == expected, (messages, options)
            continue
        refusals += 1
        with pytest.raises(ValidationError) as own:
            template.render(messages, **options)
        assert type(refusal) is not TemplateError or own.value.message == str(refusal)
    return len(CONVERSATIONS) - refusals, refusals


SPECIAL = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
SMALL = {
    "chatml": """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "no system": """{{ bos_token }}
{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate') }}{% endif %}<{{ message.role }}>
{{ message['content'] | trim }}</s>
    {%- endfor %}""",
    "tools": """{%- macro shown(value, depth=0) %}{{ '  ' * depth }}
{%- if value is mapping %}{% for key, item in value | items %}
{{ key }}: {{ shown(item, depth + 1) }}{% endfor %}{% else %}{{ value | tojson }}{% endif %}{%- endmacro %}
{%- set ns = namespace(last=-1, calls=[]) %}
{%- for tool in tools or [] %}{{ tool | tojson(indent=2) }}{{ shown(tool.function) }}{% endfor %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' and ns.last > loop.index0 %}{% continue %}{% endif %}
{{- message.role.title() }}: {% if message.content is string %}{{ message.content.split('</think>')[-1].lstrip('\n') }}
{%- else %}{% for part in message.content or [] %}{{ part.text }}|{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
{%- if message.reasoning_content is defined and loop.index0 > ns.last %}[{{ message.reasoning_content }}]{% endif %}
{% generation %}{{ loop.nextitem.role if loop.nextitem is defined }}{% endgeneration %}
{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ strftime_now('%Y') }}
{{- enable_thinking | default('unset') }}{{ documents }}""",
}


@pytest.mark.parametrize("name", SMALL)
def test_conversations_by_small_templates(name: str) -> None:
    texts, _ = compare(SMALL[name])
    assert texts >= 10


def test_conversations_by_a_models_own_template(smol: Tokenizer) -> None:
    assert len(CONVERSATIONS) == 40
    assert compare(smol.chat_templates["default"])[0] > 30


@pytest.mark.nightly
def test_public_templates_render_as_in_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The official templates that the source distribution of llama_cpp_python carries."""
    files = sorted((llama_cpp_models(tmp_path_factory) / "templates").glob("*.jinja"))
    compared = [compare(file.read_text("utf-8")) for file in files]
    assert len(files) > 60
    assert sum(texts for texts, _ in compared) > 30 * len(files)


@pytest.mark.nightly
def test_parts_of_requests_are_printed_as_in_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By every public template that prints parts of the roles in question, behind the checks of requests. (No parts at all
    are an empty text here.)"""
    compared = 0
    for file in sorted((llama_cpp_models(tmp_path_factory) / "templates").glob("*.jinja")):
        source = file.read_text("utf-8")
        template = ChatTemplate(source, SPECIAL)
        for messages, options in CONVERSATIONS:
            roles = {message["role"] for message in messages if isinstance(message["content"], list)}
            if roles and roles <= template.part_roles and all(message["content"] != [] for message in messages):
                own = template.render(normalize_messages(messages, template), **options)
                assert own == rendered_by_transformers(source, messages, **SPECIAL, **options), file.name
                compared += 1
    assert compared > 40
