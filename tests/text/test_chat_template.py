"""Rendering conversations: equality with Transformers (stored), Hugging Face's globals and filters, and the sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError, ValidationError
from octavo.text import template_meter
from octavo.text.chat_template import ChatTemplate, check_template_variables
from octavo.text.tokenizer import load_tokenizer
from tests.golden.derive_text import FILE

GOLDEN = json.loads(FILE.read_text("utf-8"))
HELLO = [{"role": "user", "content": "hello"}]
CONCATENATING = "{% for m in messages %}[{{ m['role'] + ': ' + m['content'] }}]{% endfor %}"


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> ChatTemplate:
    tokenizer = load_tokenizer(smollm2)
    return ChatTemplate(tokenizer.chat_templates, tokenizer.special_tokens)


def render(source: str, messages: list[dict[str, Any]] | None = None, **more: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages or HELLO, **more)


@pytest.mark.parametrize("row", GOLDEN["chats"], ids=lambda row: ascii(row["messages"][-1]["content"])[:20])
def test_smollm2_renders_as_transformers_does(smol: ChatTemplate, row: dict[str, Any]) -> None:
    assert smol.render(row["messages"], **row["options"]) == row["prompt"]


def test_an_empty_conversation_is_refused(smol: ChatTemplate) -> None:
    with pytest.raises(ValidationError) as error:
        smol.render([])
    assert str(error.value) == "Cannot apply chat template to an empty conversation. Provide at least one message."


def test_variables_of_the_template() -> None:
    source = (
        "{{ bos_token }}{{ add_generation_prompt }} {{ tools }} {{ documents }} {{ enable_thinking }} {{ nothing }}"
        "{% if tools is none %} none{% endif %}"
    )
    assert render(source, enable_thinking=False) == "<s>True None None False  none"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert "[{'type'" in render(source, tools=tools)
    assert render(source, tools=[], documents=[], add_generation_prompt=False) == "<s>False None None   none"
    assert render("{{ self is defined }}{{ bos_token }}", bos_token="B") == "TrueB"


def test_trimming_is_that_of_hugging_face() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\n{#- c -#}\ny\n") == "x\ny"


def test_globals_and_filters_of_hugging_face() -> None:
    assert render("{{ {'a': '<\u00e9&\\'>'} | tojson }}") == '{"a": "<\u00e9&\'>"}'
    assert render("{{ [1, {'b': none}] | tojson(indent=2) }}") == json.dumps([1, {"b": None}], indent=2)
    assert render("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}") == '{"a":2,"b":1}'
    assert render("{{ '\u00e9' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert (
        render(
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
            "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        )
        == "013"
    )
    assert render("{% generation %}\nx{{ 1 }}{% endgeneration %}y") == "x1y"
    assert (
        render("{{ dict(a=1).a }}{{ dict.fromkeys(['k']) }}{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}")
        == "1{'k': None}2"
    )


def test_loops_keep_their_variables() -> None:
    source = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}"
        "{{ loop.nextitem is defined }} {% endfor %}"
    )
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert render(source, messages) == "1/2TrueFalseTrue 2/2FalseTrueFalse "
    assert render("{% for k, v in {'a': 1}.items() if v %}{{ k }}{{ v }}{% else %}no{% endfor %}") == "a1"
    assert render("{% for x in [] %}{% else %}none{% endfor %}") == "none"
    turn = "{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}"
    nested = "{% for x in [[1, [2, 3]], 4] recursive %}" + turn + "{% endfor %}"
    assert render(nested) == "(1(23))4"
    assert render("{% macro f(x) %}<{{ x ~ 1 }}>{% endmacro %}{% for i in [1, 2] %}{{ f(i) }}{% endfor %}") == "<11><21>"
    assert render("{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ [1, 2] + [messages[0].role] }}") == "a1[1, 2, 'user']"
    assert (
        render("{{ '%s-%d' % ('a', 1) }}{{ '{:>4}|{:*<3}'.format(1, 2) }}{{ '**%s**' % 'b' }}{{ 'a' * 3 }}{{ 2 ** 5 }}")
        == "a-1   1|2****b**aaa32"
    )
    assert (
        render("{{ ' x '.strip() }}{{ 'a,b'.split(',') | join('+') }}{{ messages | map(attribute='role') | list }}")
        == "xa+b['user']"
    )


def test_c142_the_templates_own_message_is_the_error() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    with pytest.raises(ValidationError) as error:
        render(source, [{"role": "system", "content": "x"}])
    assert str(error.value) == "System role not supported"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[0].nothing.more }}", "failed on this request: UndefinedError: .*nothing"),
        ("{{ messages[0].role + 1 }}", "failed on this request: TypeError"),
        ("{{ 1 / 0 }}", "failed on this request: ZeroDivisionError"),
        ("{{ nothing | tojson }}", "failed on this request: TypeError: .*Undefined"),
        ("{% for %}", "not valid: line 1"),
        ("a\n{{ x", "not valid: line 2"),
        ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", "not valid: it is nested too deeply"),
        ("{% include 'x' %}", "failed on this request: TypeError: no loader"),
    ],
)
def test_a_template_that_fails_says_why(source: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        render(source)


def test_a_template_is_compiled_once_and_checked_on_demand() -> None:
    ChatTemplate("{{ 1 }}").check()
    with pytest.raises(ConfigError, match="line 1"):
        ChatTemplate("{{ 1").check()


def test_named_templates() -> None:
    template = ChatTemplate({"default": "D", "tool_use": "T"})
    assert template.render(HELLO) == "D"
    assert template.render(HELLO, tools=[{"type": "function"}]) == "T"
    with pytest.raises(ValidationError, match=r"no chat template named 'default' \(it has: rag\)"):
        ChatTemplate({"rag": "R"}).render(HELLO)


def test_continue_final_message() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "It is "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(CONCATENATING, messages, **options) == "[user: hello][assistant: It is "
    stripping = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    assert render(stripping, messages, **options) == "[hello][It is"
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "Par"}]}]
    assert render("{% for m in messages %}{{ m.content[0].text }}!{% endfor %}", parts, **options) == "Par"
    assert messages[1]["content"] == "It is "
    with pytest.raises(ValidationError, match="Cannot set both"):
        render(CONCATENATING, messages, continue_final_message=True)
    with pytest.raises(ValidationError, match="no content to continue"):
        render(CONCATENATING, [{"role": "assistant", "content": None}], **options)
    with pytest.raises(ValidationError, match="does not print the final message"):
        render("fixed", messages, **options)


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "tools", "self", "add_generation_prompt"])
def test_c146_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=f"chat_template_kwargs cannot hold {name}"):
        check_template_variables({name: 1, "enable_thinking": True})
    check_template_variables({"enable_thinking": True})
    with pytest.raises(ValidationError, match="cannot hold tokenize"):
        render("x", tokenize=False)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ (messages | attr('__class__')).__base__ }}",
    "{{ ('{0.__class__.__init__.__globals__}' | attr('format'))(raise_exception) }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ ['{0.__class__}'] | map('format', 1) | list }}{{ ''.format.__self__.__class__.__name__.x.y }}",
    "{{ raise_exception.__globals__.json }}",
    "{{ strftime_now.__globals__['json'] }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ namespace.__init__.__globals__.os }}",
    "{{ dict.__class__.__base__ }}",
    "{{ self.__init__.__globals__.x }}",
    "{{ self._TemplateReference__context.environment.x }}",
    "{{ messages.append(1) }}",
    "{% set ns = namespace(__class__=1) %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% import 'os' as os %}",
    "{{ (1).to_bytes(10 ** 9, 'big') }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_c146_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(ValidationError, match="chat template failed"):
        render(source)


DOUBLING = (
    "{{% set ns = namespace(x={start}) %}}{{% for i in range(64) %}}{{% set ns.x = {next} %}}{{% endfor %}}{{{{ ns.x }}}}"
)
BOMBS = {
    "nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in range(99999) recursive %}{% if loop.depth0 < 3 %}{{ loop(range(99999)) }}{% endif %}"
    "{% endfor %}",
    "macro": "{% macro f(n) %}{% if n < 40 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(1) }}",
    "block": "{% block a %}{% if ns is defined %}{% endif %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "huge range": "{{ range(10 ** 12) }}",
    "string times": "{{ 'a' * 10 ** 10 }}",
    "times string": "{{ 10 ** 10 * 'a' }}",
    "string times twice": "{% set x = 'a' * 1000 * 1000 %}{{ x * 1000 * 1000 }}",
    "list times": "{% set x = [1] * 10 ** 10 %}",
    "tuple times": "{% set x = (1, 2) * 10 ** 10 %}",
    "constant": "{{ 'ab' | center(1000000000) }}",
    "power": "{{ 9 ** 99999999 }}",
    "squares": DOUBLING.format(start="9", next="ns.x * ns.x"),
    "text plus": DOUBLING.format(start="'a'", next="ns.x + ns.x"),
    "text joined": DOUBLING.format(start="'a'", next="ns.x ~ ns.x"),
    "text in a list": DOUBLING.format(start="'a'", next="[ns.x, ns.x] | join"),
    "text formatted": DOUBLING.format(start="'a'", next="'%s%s' % (ns.x, ns.x)"),
    "text str.format": DOUBLING.format(start="'a'", next="'{0}{0}'.format(ns.x)"),
    "text replaced": DOUBLING.format(start="'aa'", next="ns.x.replace('a', ns.x)"),
    "text filter replaced": DOUBLING.format(start="'aa'", next="ns.x | replace('a', ns.x)"),
    "list plus": DOUBLING.format(start="[1]", next="ns.x + ns.x"),
    "list in list": DOUBLING.format(start="[1]", next="[ns.x, ns.x]"),
    "tuple in tuple": DOUBLING.format(start="(1,)", next="(ns.x, ns.x)"),
    "dict in dict": DOUBLING.format(start="{}", next="{'a': ns.x, 'b': ns.x}"),
    "dict()": DOUBLING.format(start="{}", next="dict(a=ns.x, b=ns.x)"),
    "batched": DOUBLING.format(start="[1]", next="(ns.x + ns.x) | batch(1) | list"),
    "json": "{% set ns = namespace(x=1) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x | tojson }}",
    "pad": "{{ 'a'.ljust(10 ** 10) }}{{ 'a'.center(10 ** 10) }}{{ '1'.zfill(10 ** 10) }}",
    "percent format": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "percent filter": "{{ '%1000000000d' | format(1) }}",
    "str.format": "{{ '{:1000000000}'.format(1) }}",
    "str.format nested": "{{ '{:{}}'.format(1, 1000000000) }}",
    "str.format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "join": "{% set x = 'a' * 400000 %}{{ x.join(range(99999) | map('string')) }}",
    "join filter": "{% set x = 'a' * 400000 %}{{ range(99999) | join(x) }}",
    "indent": "{{ messages | tojson(indent=10 ** 12) }}",
    "indent filter": "{{ 'a\nb' | indent(100000000) }}",
    "indent text": "{{ 'a\nb' | indent('x' * 1000000) }}",
    "replace": "{% set x = 'a' * 400000 %}{% set y = x.replace('a', x) %}",
    "replace filter": "{% set x = 'a' * 400000 %}{% set y = x | replace('a', x) %}",
    "compare": "{% set a = namespace(x=1) %}{% set b = namespace(x=1) %}{% for i in range(64) %}"
    "{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}{{ a.x == b.x }}",
    "macro text": "{% macro f() %}" + "a" * 9999 + "{% endmacro %}{% for i in range(99999) %}{{ f() }}{% endfor %}",
    "loop text": "{% for i in range(9999) %}" + "a" * 9999 + "{% endfor %}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(10 ** 9) }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) | list }}",
    "slice": "{{ [1] | slice(10 ** 9) | list }}",
    "strftime": "{{ strftime_now('%1000000000Y') }}",
    "filter in a loop": "{% set r = range(99999) | list %}{% for i in r %}{% set x = r | sum %}{% endfor %}",
    "set block": "{% for i in range(99999) %}{% set x %}{% for j in range(99999) %}"
    + "a" * 99
    + "{% endfor %}{% endset %}{% endfor %}",
    "many words": "{% set x = ('a ' * 100000).split() %}{% for i in range(9999) %}"
    "{% set y = x | map('upper') | list %}{% endfor %}",
    "output": "{% set x = 'a' * 100000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_c146_a_template_cannot_run_away(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "OPERATIONS", template_meter.OPERATIONS // 20)  # to save time
    limited = "too many operations|too large|too wide|longer than 5 seconds|Range too big|is not available|recursion"
    with pytest.raises(ValidationError, match=f"chat template failed on this request: .*({limited})"):
        render(source)


def test_c146_time_ends_what_operations_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="too many operations"):
        render(BOMBS["nested loops"])
    monkeypatch.setattr(template_meter, "CPU_SECONDS", 0.2)
    with pytest.raises(ValidationError, match="longer than 0 seconds"):
        render("{% set s = 'ab' * 5000000 %}{% for i in range(99999) %}{% set x = 'bb' in s %}{% endfor %}")


def test_a_long_conversation_is_well_within_the_limits(smol: ChatTemplate) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": "word " * 2000} for n in range(1000)]
    prompt = smol.render(messages)
    assert len(prompt) > 10_000_000
    turn = "{% set ns.seen = ns.seen + [m.role] %}"
    quadratic = "{% set ns = namespace(seen=[]) %}{% for m in messages %}" + turn + "{% endfor %}{{ ns.seen | length }}"
    assert render(quadratic, messages) == "1000"


def test_what_a_template_knows() -> None:
    assert not ChatTemplate(CONCATENATING).knows_developer
    assert ChatTemplate("{# developer #}" + CONCATENATING).knows_developer
    refusal = "{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}"
    raising = "{% for m in messages %}" + refusal + "{{ m.content }}{% endfor %}"
    assert not ChatTemplate(raising).knows_developer
    first_only = "{{ messages[0].content }}{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    assert ChatTemplate(CONCATENATING).takes_scattered_system
    assert not ChatTemplate(first_only).takes_scattered_system
    parts_only = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert [ChatTemplate(source).needs_parts for source in (CONCATENATING, parts_only)] == [False, True]
