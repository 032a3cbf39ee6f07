"""OpenAI messages for templates. Case numbers are those of the bug reports."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from octavo.errors import ValidationError
from octavo.text.chat_template import ChatTemplate
from octavo.text.messages import normalize_messages

CHATML = ChatTemplate("{% for m in messages %}[{{ m['role'] + ': ' + m['content'] }}]{% endfor %}")


def normal(*messages: Any, template: ChatTemplate = CHATML) -> list[dict[str, Any]]:
    given = copy.deepcopy(list(messages))
    result = normalize_messages(list(messages), template)
    assert list(messages) == given  # the input is left alone
    return result


def call(arguments: Any, name: str = "f") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a":', '{"a":'),
        ("", {}),
        ("  ", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_c43_c145_arguments_of_earlier_calls(arguments: Any, expected: Any) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
    result = normal(message, {"role": "tool", "content": "ok"})
    assert result[0]["tool_calls"][0]["function"]["arguments"] == expected
    assert result[0]["content"] == ""
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    if isinstance(expected, dict):
        assert template.render(result) in ("{}", '{"a": 1}')


def test_c43_an_empty_list_of_calls_is_no_calls() -> None:
    assert normal({"role": "assistant", "content": "x", "tool_calls": []}) == [{"role": "assistant", "content": "x"}]
    assert normal({"role": "assistant", "content": "x", "tool_calls": None}) == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
def test_c134_text_parts_become_one_text(role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normal({"role": role, "content": parts})[0]["content"] == "a\nb"
    assert normal({"role": role, "content": []})[0]["content"] == ""
    rendered = CHATML.render(normal({"role": role, "content": parts}))
    assert "a\nb" in rendered


def test_c134_parts_stay_parts_where_the_template_prints_them_one_by_one() -> None:
    """As this one does for users; tools' results it prints as JSON, system messages not at all, answers only as texts."""
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}{% for p in m.content %}<{{ p.text }}>"
        "{% endfor %}{% elif m.role == 'tool' %}{{ m.content | tojson }}{% elif m.role != 'system' %}{{ m.content + '!' }}"
        "{% endif %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert template.part_roles == {"user"}
    messages = normal(
        *({"role": role, "content": parts} for role in ("system", "user", "assistant", "tool")), template=template
    )
    assert [message["content"] for message in messages] == [
        "a\nb",
        [parts[0], {"type": "text", "text": "b"}],
        "a\nb",
        "a\nb",
    ]
    assert all(message.keys() == {"role", "content"} for message in messages)
    assert template.render(messages) == '<a><b>a\nb!"a\\nb"'
    assert normal({"role": "user", "content": []}, template=template)[0]["content"] == ""
    history = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    assert template.render(normalize_messages(history, template, fold_system=True)) == "<s\n\n><a><b>"
    forged = {"role": "user", "content": "a", "octavo-parts": [{"type": "image"}]}
    assert normal(forged, template=template) == [{"role": "user", "content": "a"}]


def test_other_kinds_of_text_parts() -> None:
    parts = [
        "a",
        {"type": "input_text", "text": "b"},
        {"type": "output_text", "text": "c"},
        {"type": "refusal", "refusal": "d"},
    ]
    assert normal({"role": "assistant", "content": parts})[0]["content"] == "a\nb\nc\nd"


USER = {"role": "user", "content": "x"}
WRONG = [
    ({"role": "user", "content": None}, "messages[1].content must be a string or a list of content parts, got null."),
    ({"role": "user"}, "messages[1].content must be a string or a list of content parts, got nothing."),
    ({"role": "user", "content": 5}, "messages[1].content must be a string or a list of content parts, got 5."),
    ({"role": "tool", "content": {}}, "messages[1].content must be a string or a list of content parts, got an object."),
    ({"content": "x"}, "messages[1].role must be one of system, developer, user, assistant, tool, function, got nothing."),
    ({"role": "banana", "content": "x"}, 'messages[1].role must be one of .*, got "banana".'),
    ({"role": ["user"], "content": "x"}, "messages[1].role must be one of .*, got a list."),
    ("x", 'messages[1] must be an object with role and content, got "x".'),
    (None, "messages[1] must be an object with role and content, got null."),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
        'messages[1].content[0].type must be text, .*"image_url"',
    ),
    (
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video"}]},
        r"messages[1].content[1].type must be text",
    ),
    ({"role": "user", "content": [{"text": "a"}]}, "messages[1].content[0].type must be text, .* got nothing."),
    ({"role": "user", "content": [{"type": ["text"]}]}, "messages[1].content[0].type must be text"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text must be a string, got nothing."),
    ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[1].content[0].text must be a string, got 1."),
    ({"role": "user", "content": [None]}, "messages[1].content[0] must be an object with a type, got null."),
    ({"role": "user", "content": "x", "name": 5}, "messages[1].name must be a string, got 5."),
    ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[1].tool_call_id must be a string, got 5."),
    ({"role": "assistant", "tool_calls": "x"}, 'messages[1].tool_calls must be a list of tool calls, got "x".'),
    ({"role": "assistant", "tool_calls": [5]}, "messages[1].tool_calls[0].function must be an object"),
    (
        {"role": "assistant", "tool_calls": [{"function": {}}]},
        "messages[1].tool_calls[0].function.name must be a string, got nothing.",
    ),
]


@pytest.mark.parametrize(("message", "text"), WRONG)
def test_c125_c134_what_is_wrong_is_named(message: Any, text: str) -> None:
    pattern = text.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(ValidationError, match=pattern) as error:
        normal(USER, message)
    assert error.value.parameter is not None
    assert error.value.parameter.startswith("messages[1]")


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(ValidationError) as error:
        normal({"role": "x" * 10_000, "content": ""})
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("messages", ["text", {"role": "user"}, None, 5])
def test_messages_that_are_no_list(messages: Any) -> None:
    with pytest.raises(ValidationError, match="messages must be a list of messages"):
        normalize_messages(messages, CHATML)


@pytest.mark.parametrize(
    "message", [{"role": "assistant", "content": ""}, {"role": "assistant", "content": None}, {"role": "assistant"}]
)
def test_c125_an_assistant_may_have_said_nothing(message: dict[str, Any]) -> None:
    assert normal(USER, message)[1] == {"role": "assistant", "content": ""}


def test_an_empty_list_is_left_to_the_template() -> None:
    assert normal() == []


def test_c145_parallel_calls_and_a_tool_message_without_id() -> None:
    history = [USER, {"role": "assistant", "tool_calls": [call("{}", "f"), call('{"x": [1]}', "g")]}]
    result = normal(*history, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2", "tool_call_id": "c2"})
    assert [one["function"] for one in result[1]["tool_calls"]] == [
        {"name": "f", "arguments": {}},
        {"name": "g", "arguments": {"x": [1]}},
    ]
    assert result[2:] == [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2", "tool_call_id": "c2"}]


def test_reasoning_goes_by_every_name() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        result = normal({"role": "assistant", "content": "x", name: "hm"})[0]
        assert (result["reasoning_content"], result["reasoning"], result["thinking"]) == ("hm", "hm", "hm")
    assert "thinking" not in normal({"role": "assistant", "content": "x", "reasoning": None})[0]


KNOWS = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'developer' %}DEV{% endif %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
)
RAISES = ChatTemplate(
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('Unknown role') }}"
    "{% endif %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
)
IGNORES = ChatTemplate("{% for m in messages if m.role in ['system', 'user'] %}[{{ m.role }}: {{ m.content }}]{% endfor %}")
FIRST_ONLY = ChatTemplate(
    "{% if messages[0].role == 'system' %}[system: {{ messages[0].content }}]{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'system' %}{{ raise_exception('system must be first') }}{% endif %}"
    "[{{ m.role }}: {{ m.content }}]{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (KNOWS, "DEV[developer: rule][user: x]"),
        (RAISES, "[system: rule][user: x]"),
        (IGNORES, "[system: rule][user: x]"),
        (FIRST_ONLY, "[system: rule][user: x]"),
        (CHATML, "[system: rule][user: x]"),
    ],
    ids=["knows it", "raises", "ignores it", "first only", "any role"],
)
def test_c143_a_developers_message_reaches_the_model(template: ChatTemplate, expected: str) -> None:
    messages = normal({"role": "developer", "content": "rule"}, USER, template=template)
    assert template.render(messages) == expected


def test_c143_several_system_messages_are_merged_where_the_template_needs_it() -> None:
    history = [{"role": "system", "content": "a"}, USER, {"role": "developer", "content": "b"}]
    assert FIRST_ONLY.render(normal(*history, template=FIRST_ONLY)) == "[system: a\n\nb][user: x]"
    assert RAISES.render(normal(*history, template=RAISES)) == "[system: a][user: x][system: b]"


def test_c142_a_template_that_refuses_system_says_so() -> None:
    template = ChatTemplate(
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    for role in ("system", "developer"):
        with pytest.raises(ValidationError, match=r"^System role not supported$"):
            template.render(normal({"role": role, "content": "a"}, USER, template=template))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([{"role": "system", "content": "a"}, USER], [{"role": "user", "content": "a\n\nx"}]),
        ([{"role": "developer", "content": "a"}], [{"role": "user", "content": "a"}]),
        ([{"role": "system", "content": ""}, USER], [USER]),
        ([USER], [USER]),
        (
            [{"role": "assistant", "content": "hi"}, USER, {"role": "system", "content": "b"}, USER],
            [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "b\n\nx"}, USER],
        ),
    ],
)
def test_c142_system_messages_may_be_folded_into_the_first_of_the_user(history: Any, expected: Any) -> None:
    assert normalize_messages(history, RAISES, fold_system=True) == expected


def test_a_template_that_reads_parts_gets_parts() -> None:
    template = ChatTemplate("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}")
    assert template.render(normal(USER, template=template)) == "<x>"


def test_c43_a_template_gets_calls_in_the_form_that_it_prints() -> None:
    """As DeepSeek's older templates want them."""
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}"
        "{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    assert template.call_form == (True, True)
    assert CHATML.call_form == (False, False)
    for arguments, printed in [('{"a": "\u00e9"}', 'f {"a": "\u00e9"}'), ("", "f {}"), ('{"a":', 'f {"a":')]:
        message = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
        result = normal(USER, message, {"role": "tool", "content": "ok"}, template=template)
        assert template.render(result) == f"[x]{printed}[ok]"
    said = normal({"role": "assistant", "content": "hm", "tool_calls": [call("{}")]}, template=template)
    assert said[0]["content"] == "hm"
