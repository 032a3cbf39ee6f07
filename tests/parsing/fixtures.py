"""Answers in every tool format, with what they say. Our own texts."""

from __future__ import annotations

from typing import Any, NamedTuple

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "note": {"type": "string"},
        "days": {"type": "integer"},
        "scale": {"type": "number"},
        "metric": {"type": "boolean"},
        "ids": {"type": "array"},
        "options": {"type": "object"},
        "maybe": {"type": ["string", "null"]},
        "any": {},
    },
}
TOOLS: dict[str, dict[str, Any]] = dict.fromkeys(("weather", "now", "ns.lookup", "save"), PARAMETERS)


class Fixture(NamedTuple):
    """A model's text, the content in it, and the calls as (name, arguments)."""

    text: str
    content: str
    calls: list[tuple[str, Any]]


OSLO, UNICODE = {"city": "Oslo"}, {"city": "Zürich", "note": "東京 🙂"}
NASTY = {"note": 'a {b, [c "d" \\ </tool_call> ]}'}
_NASTY_JSON = '{"note": "a {b, [c \\"d\\" \\\\ </tool_call> ]}"}'

HERMES = [
    Fixture('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [("now", {})]),
    Fixture(
        'Let me check.<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
        "Let me check.",
        [("weather", OSLO)],
    ),
    Fixture(
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "weather", "arguments": '
        '{"city": "Zürich", "note": "東京 🙂"}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"days": 3}, "name": "save"}\n</tool_call>',
        "",
        [("now", {}), ("weather", UNICODE), ("save", {"days": 3})],
    ),
    Fixture(f'<tool_call>{{"name": "save", "arguments": {_NASTY_JSON}}}</tool_call>', "", [("save", NASTY)]),
    Fixture(
        'I could use <tool_call> for this. <tool_call>\n{"name":"weather","arguments":{"days":1}}\n</tool_call>',
        "I could use <tool_call> for this. ",
        [("weather", {"days": 1})],
    ),
    Fixture('<tool_call>{"name":"save","arguments":"{\\"days\\": 2}"}</tool_call> Done.', " Done.", [("save", {"days": 2})]),
    Fixture('<tool_call>{"name":"unknown","arguments":{"a":[1,{"b":null}]}}', "", [("unknown", {"a": [1, {"b": None}]})]),
    Fixture('<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
    Fixture(
        "Tags <tool_call> and </tool_call>, {braces} and <tool", "Tags <tool_call> and </tool_call>, {braces} and <tool", []
    ),
    Fixture(
        'Ok. <tool_calls>[{"name": "now", "arguments": {}, "id": "a"}, '
        '{"name": "save", "arguments": {"days": 1}}]</tool_calls>',
        "Ok. ",
        [("now", {}), ("save", {"days": 1})],
    ),
    Fixture('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    Fixture('<tool_call>{"name":"save","arguments":{"days":1}}} oops </tool_call>!', "} oops !", [("save", {"days": 1})]),
    Fixture('<tool_call>{"name":"save","arguments":{"note":"a\nb","days":[1,</tool_call>', "", [("save", None)]),
]
LLAMA3 = [
    Fixture('{"name": "weather", "parameters": {"city": "Oslo"}}', "", [("weather", OSLO)]),
    Fixture(
        '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "save", "parameters": {"days": 1}}',
        "",
        [("now", {}), ("save", {"days": 1})],
    ),
    Fixture(
        '{"name":"save","parameters":{"options":{"name":"now","parameters":{"k":{"name":"now","parameters":{}}}}}}',
        "",
        [("save", {"options": {"name": "now", "parameters": {"k": {"name": "now", "parameters": {}}}}})],
    ),
    Fixture('{"name":"now","parameters":{}} I took {lookup} and {"q":"x"}', ' I took {lookup} and {"q":"x"}', [("now", {})]),
    Fixture("{}", "{}", []),
    Fixture('{"k": 2} is what I keep', '{"k": 2} is what I keep', []),
    Fixture('{"name":"Rex","age":4}', '{"name":"Rex","age":4}', []),
    Fixture('{"name":"now","age":4}', '{"name":"now","age":4}', []),
    Fixture('```json\n{"name":"Rex","parameters":{}}\n```\n', '```json\n{"name":"Rex","parameters":{}}\n```\n', []),
    Fixture(
        '\n{"type":"function","name":"weather","arguments":{"city":"Zürich","note":"東京 🙂"}}\n', "", [("weather", UNICODE)]
    ),
    Fixture(f'{{"name": "save", "parameters": {_NASTY_JSON}}}', "", [("save", NASTY)]),
    Fixture('[{"name":"now","parameters":{}},{"name":"save","parameters":null}]', "", [("now", {}), ("save", {})]),
    Fixture('{"name": "wea', '{"name": "wea', []),
]
MISTRAL = [
    Fixture('[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]', "", [("weather", OSLO)]),
    Fixture(
        'Use the form {x}. [TOOL_CALLS] [{"name":"save","arguments":{"days":1}}]',
        "Use the form {x}. ",
        [("save", {"days": 1})],
    ),
    Fixture(
        '[TOOL_CALLS] [{"name":"save","arguments":{"options":{"p":{"q":[{"r":"]}"}]}}}}]',
        "",
        [("save", {"options": {"p": {"q": [{"r": "]}"}]}}})],
    ),
    Fixture(
        '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[ARGS]{"city": "Zürich", "note": "東京 🙂"}',
        "",
        [("now", {}), ("weather", UNICODE)],
    ),
    Fixture('[TOOL_CALLS]ns.lookup{"any": [1, 2]}', "", [("ns.lookup", {"any": [1, 2]})]),
    Fixture('[TOOL_CALLS]save[CALL_ID]Ab3dEf7hJ[ARGS]{"days": 4}', "", [("save", {"days": 4})]),
    Fixture('Hm. [TOOL_CALLS] [{"name": broken}]', 'Hm. [TOOL_CALLS] [{"name": broken}]', []),
    Fixture("See [TOOL_CALLS] in the docs [here].", "See [TOOL_CALLS] in the docs [here].", []),
    Fixture(
        '[TOOL_CALLS] [{"name":"now","arguments":{}}, {"name":"save","arguments":{"note":"x"}}]',
        "",
        [("now", {}), ("save", {"note": "x"})],
    ),
]
PYTHONIC = [
    Fixture('[weather(city="Oslo")]', "", [("weather", OSLO)]),
    Fixture(
        '[save(ids=[[1,2],[3,4]], options={"color":"red","w":None,"on":True})]',
        "",
        [("save", {"ids": [[1, 2], [3, 4]], "options": {"color": "red", "w": None, "on": True}})],
    ),
    Fixture("[weather(scale=9e400), now(days=1)]", "weather(scale=9e400)", [("now", {"days": 1})]),
    Fixture('[save(note="a]b)c")]\n[now()]', "", [("save", {"note": "a]b)c"}), ("now", {})]),
    Fixture("[D'Arcy's] notes, x[0] and [now] [1, 2]", "[D'Arcy's] notes, x[0] and [now] [1, 2]", []),
    Fixture(
        "[save(note='it\\'s \\x41\\u00e9\\n\"', days=-1_000, scale=.5, ids=(1, 0x1F,),)]",
        "",
        [("save", {"note": "it's Aé\n\"", "days": -1000, "scale": 0.5, "ids": [1, 31]})],
    ),
    Fixture(
        'Sure: [weather(city="Zürich", note="東京 🙂"), now()] there.', "Sure:  there.", [("weather", UNICODE), ("now", {})]
    ),
    Fixture("<|python_start|>[other(a=1)]<|python_end|>", "", [("other", {"a": 1})]),
    Fixture("[now(), save(1, 2), weather(any=nan)]", "save(1, 2)weather(any=nan)", [("now", {})]),
    Fixture("\n[now()]\n[now()] end", " end", [("now", {}), ("now", {})]),
    Fixture("[save(1, 2)] is positional", "[save(1, 2)] is positional", []),
    Fixture(f'[save(note="{"long " * 40}", days=1)]', "", [("save", {"note": "long " * 40, "days": 1})]),
    Fixture('[save(note="""a "quoted" b\nc""", maybe=null)]', "", [("save", {"note": 'a "quoted" b\nc', "maybe": None})]),
]
QWEN3_CODER = [
    Fixture(
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        "",
        [("weather", OSLO)],
    ),
    Fixture(
        "<tool_call>\n<function=save>\n<parameter=days>\n1\n<parameter=note>\ntwo\n</parameter>\n</function>\n</tool_call>",
        "",
        [("save", {"days": 1, "note": "two"})],
    ),
    Fixture("<tool_call>\n<function=save>\n<parameter=days>\n1\n</parameter>\n</tool_call>", "", [("save", {"days": 1})]),
    Fixture(
        "<tool_call>\n<function=save>\n<parameter=days>\n2031-05-02\n</parameter>\n<parameter=metric>\nmaybe\n</parameter>\n"
        "<parameter=scale>\n1,000\n</parameter>\n</function>\n</tool_call>",
        "",
        [("save", {"days": "2031-05-02", "metric": "maybe", "scale": "1,000"})],
    ),
    Fixture(
        '<tool_call>\n<function=save>\n<parameter=note>\nx = "</parameter>"\ny = "</tool_call>" # '
        "<parameter=days>\n\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [("save", {"note": 'x = "</parameter>"\ny = "</tool_call>" # <parameter=days>\n'})],
    ),
    Fixture(
        "A.<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n"
        "<parameter=city>\nZürich\n</parameter>\n"
        "<parameter=note>\n東京 🙂\n</parameter>\n</function>\n</tool_call>B.",
        "A.B.",
        [("now", {}), ("weather", UNICODE)],
    ),
    Fixture(
        "<function=save>\n<parameter=ids>\n[1, {'a': None}]\n</parameter>\n<parameter=metric>\nTrue\n"
        "</parameter>\n<parameter=maybe>\nnull\n"
        "</parameter>\n<parameter=any>\n7\n</parameter>\n</function>",
        "",
        [("save", {"ids": [1, {"a": None}], "metric": True, "maybe": None, "any": 7})],
    ),
    Fixture("Use <tool_call> or <function=x\nplease", "Use <tool_call> or <function=x\nplease", []),
    Fixture(
        "<seed:tool_call>\n<function=save>\n<parameter=note>a</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("save", {"note": "a"})],
    ),
    Fixture(
        "<tool_call>\n<function=save>\n<parameter=note>\n</parameter>\n</function>\n</tool_call>",
        "",
        [("save", {"note": ""})],
    ),
]
_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
_V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def _deepseek(call: str) -> list[Fixture]:
    return [
        Fixture(_BEGIN + call % ("weather", '{"city": "Oslo"}') + _END, "", [("weather", OSLO)]),
        Fixture(
            "Hm." + _BEGIN + call % ("now", "{}") + "\n" + call % ("save", '{"days": 1}') + _END,
            "Hm.",
            [("now", {}), ("save", {"days": 1})],
        ),
        Fixture(
            _BEGIN + call % ("weather", '{"city": "Zürich", "note": "東京 🙂"}') + _END + " Ok.",
            " Ok.",
            [("weather", UNICODE)],
        ),
        Fixture(_BEGIN + call % ("save", _NASTY_JSON) + _END, "", [("save", NASTY)]),
        Fixture(_BEGIN + call % ("save", '{"note": "```"}') + _END, "", [("save", {"note": "```"})]),
        Fixture(call % ("now", "{}"), "", [("now", {})]),
        Fixture(_BEGIN + " nothing " + _END, _BEGIN + " nothing " + _END, []),
        Fixture(_BEGIN + call % ("save", "none") + _END, _BEGIN + call % ("save", "none") + _END, []),
        Fixture(_BEGIN + call % ("save", '{"ids": [1, 2') + _END, "", [("save", {"ids": [1, 2]})]),
    ]


GLM45 = [
    Fixture(
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>", "", [("weather", OSLO)]
    ),
    Fixture(
        "<tool_call>save\n<arg_key>scale</arg_key><arg_value>10</arg_value><arg_key>ids</arg_key><arg_value>[]</arg_value>"
        "<arg_key>note</arg_key><arg_value>20095</arg_value></tool_call>",
        "",
        [("save", {"scale": 10, "ids": [], "note": "20095"})],
    ),
    Fixture(
        "<tool_call>save<arg_key>note</arg_key></arg_key><arg_value>/srv/a</arg_value></tool_call>",
        "",
        [("save", {"note": "/srv/a"})],
    ),
    Fixture(
        "<tool_call>save<arg_key>note</arg_key><arg_value>x</arg_key></arg_value>y</tool_call>z</arg_value></tool_call>",
        "",
        [("save", {"note": "x</arg_key></arg_value>y</tool_call>z"})],
    ),
    Fixture("<tool_call>now</tool_call>", "", [("now", {})]),
    Fixture(
        "One. <tool_call>now\n</tool_call>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich"
        "</arg_value>\n<arg_key>note"
        "</arg_key>\n<arg_value>東京 🙂</arg_value>\n</tool_call> Two.",
        "One.  Two.",
        [("now", {}), ("weather", UNICODE)],
    ),
    Fixture("The <tool_call> tag, <tool_call>{} too", "The <tool_call> tag, <tool_call>{} too", []),
    Fixture(
        "<tool_call>save<arg_key>note</arg_key><arg_value>true</arg_value><arg_key>metric</arg_key>"
        "<arg_value>true</arg_value>"
        '<arg_key>any</arg_key><arg_value>{"a": [1]}</arg_value></tool_call>',
        "",
        [("save", {"note": "true", "metric": True, "any": {"a": [1]}})],
    ),
]
GRANITE = [
    Fixture('<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]', "", [("weather", OSLO)]),
    Fixture(
        '<tool_call>[{"name": "now", "arguments": {}}, {"name": "save", "arguments": {"days": 1}}]',
        "",
        [("now", {}), ("save", {"days": 1})],
    ),
    Fixture('[{"name": "now", "arguments": {}}]', "", [("now", {})]),
    Fixture("[1, 2] and {3}", "[1, 2] and {3}", []),
    Fixture('[{"name": "Rex", "arguments": {}}]', '[{"name": "Rex", "arguments": {}}]', []),
    Fixture(f'Ok <|tool_call|> [{{"name": "save", "arguments": {_NASTY_JSON}}}]', "Ok ", [("save", NASTY)]),
    Fixture(
        '<|tool_call|>{"name": "weather", "arguments": {"city": "Zürich", "note": "東京 🙂"}}', "", [("weather", UNICODE)]
    ),
    Fixture("<|tool_call|> is a mark", "<|tool_call|> is a mark", []),
]
PHI4 = [
    Fixture('functools[{"name": "weather", "arguments": {"city": "Oslo"}}]', "", [("weather", OSLO)]),
    Fixture(
        'functools[{"name": "now", "arguments": {}},{"name": "save", "arguments": {"days": 1}}]',
        "",
        [("now", {}), ("save", {"days": 1})],
    ),
    Fixture('<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', "", [("now", {})]),
    Fixture("The functools module has functools.reduce", "The functools module has functools.reduce", []),
    Fixture(f'functools[{{"name": "save", "arguments": {_NASTY_JSON}}}]', "", [("save", NASTY)]),
    Fixture(
        'Ok. functools [{"name": "weather", "arguments": {"city": "Zürich", "note": "東京 🙂"}}]',
        "Ok. ",
        [("weather", UNICODE)],
    ),
    Fixture("functools[1, 2]", "functools[1, 2]", []),
    Fixture('functools[{"name": "now", "arguments": {}}, broken]', ", broken]", [("now", {})]),
]
GENERIC_JSON = [
    Fixture('{"name": "weather", "arguments": {"city": "Oslo"}}', "", [("weather", OSLO)]),
    Fixture(
        '[{"name": "now", "parameters": {}}, {"name": "save", "arguments": {"days": 1}}]',
        "",
        [("now", {}), ("save", {"days": 1})],
    ),
    Fixture('```json\n{"name": "now", "arguments": {}}\n```\n', "", [("now", {})]),
    Fixture('```\n{"name": "Rex", "age": 4}\n```', '```\n{"name": "Rex", "age": 4}\n```', []),
    Fixture(
        '{"name":"now","arguments":{}}\n{"name":"save","arguments":{"days":1}}', "", [("now", {}), ("save", {"days": 1})]
    ),
    Fixture('{"answer": 42}', '{"answer": 42}', []),
    Fixture('{"name":"now","arguments":{}} and so on', " and so on", [("now", {})]),
    Fixture('It is {"name":"now","arguments":{}}', 'It is {"name":"now","arguments":{}}', []),
    Fixture('{"name": "weather", "arguments": {"city": "Zürich", "note": "東京 🙂"}}', "", [("weather", UNICODE)]),
]
GEMMA4 = [
    Fixture('<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>', "", [("weather", OSLO)]),
    Fixture("<|tool_call>call:now{}<tool_call|>", "", [("now", {})]),
    Fixture(
        '<|tool_call>call:save{days:1,scale:-2.5e3,metric:true,ids:[1,[<|"|>a<|"|>]],options:{k:null,'
        '<|"|>l m<|"|>:2}}<tool_call|>',
        "",
        [("save", {"days": 1, "scale": -2500.0, "metric": True, "ids": [1, ["a"]], "options": {"k": None, "l m": 2}})],
    ),
    Fixture(
        'Hm.<|tool_call>call:now{}<tool_call|><|tool_call>call:save{note:<|"|>x<|"|>}<tool_call|>',
        "Hm.",
        [("now", {}), ("save", {"note": "x"})],
    ),
    Fixture(
        '<|tool_call>call:save{note:<|"|>a "b" \\ {c}, <tool_call|>\nd<|"|>}<tool_call|>',
        "",
        [("save", {"note": 'a "b" \\ {c}, <tool_call|>\nd'})],
    ),
    Fixture(
        '<|tool_call>call:weather{city:<|"|>Zürich<|"|>,note:<|"|>東京 🙂<|"|>}<tool_call|> Done',
        " Done",
        [("weather", UNICODE)],
    ),
    Fixture("<|tool_call> is a mark", "<|tool_call> is a mark", []),
    Fixture("<|tool_call>call:now<tool_call|>", "<|tool_call>call:now<tool_call|>", []),
]


def _function_gemma(text: str) -> str:
    marks = {"<|tool_call>": "<start_function_call>", "<tool_call|>": "<end_function_call>", '<|"|>': "<escape>"}
    for mark, other in marks.items():
        text = text.replace(mark, other)
    return text


FUNCTION_GEMMA = [
    Fixture(_function_gemma(text), _function_gemma(content), calls) for text, content, calls in GEMMA4 if "\nd" not in text
]
FUNCTION_GEMMA.append(Fixture("call:now{} is text", "call:now{} is text", []))
REGEX = [
    Fixture('CALL weather({"city": "Oslo"})', "", [("weather", OSLO)]),
    Fixture('a CALL now({}) b CALL save({"days": 1}) c', "a  b  c", [("now", {}), ("save", {"days": 1})]),
    Fixture("CALL now()", "", [("now", {})]),
    Fixture("nothing to CALL", "nothing to CALL", []),
    Fixture('CALL weather({"city": "Zürich",\n"note": "東京 🙂"})', "", [("weather", UNICODE)]),
    Fixture("CALL now", "CALL now", []),
    Fixture("\nCALL now({})\n", "", [("now", {})]),
    Fixture("", "", []),
]
RAW = [Fixture(fixture.text, fixture.text, []) for fixture in HERMES]
_CALL = "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>"
OPENAI = [
    Fixture(_CALL % ("weather", '{"city": "Oslo"}'), "", [("weather", OSLO)]),
    Fixture("<|channel|>final<|message|>Hello.<|return|>", "Hello.", []),
    Fixture(
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + _CALL % ("now", "{}"), "I look.", [("now", {})]
    ),
    Fixture(' to=functions.save<|channel|>commentary json<|message|>{"days": 1}', "", [("save", {"days": 1})]),
    Fixture(
        _CALL % ("now", "{}")
        + "<|start|>assistant to=functions.save<|channel|>commentary json<|message|>"
        + _NASTY_JSON
        + "<|call|>",
        "",
        [("now", {}), ("save", NASTY)],
    ),
    Fixture("plain text", "plain text", []),
    Fixture(
        _CALL % ("ns.lookup", '{"any": "Zürich"}') + "<|start|>assistant<|channel|>final<|message|>東京",
        "東京",
        [("ns.lookup", {"any": "Zürich"})],
    ),
    Fixture("<|channel|>commentary to=functions.now<|message|><|call|>", "", [("now", {})]),
]

TOOL_FIXTURES: dict[str, list[Fixture]] = {
    "deepseek_v3": _deepseek(_V3),
    "deepseek_v31": _deepseek(_V31),
    "functiongemma": FUNCTION_GEMMA,
    "gemma4": GEMMA4,
    "glm45": GLM45,
    "granite": GRANITE,
    "hermes": HERMES,
    "json": GENERIC_JSON,
    "llama3_json": LLAMA3,
    "mistral": MISTRAL,
    "openai": OPENAI,
    "phi4_mini_json": PHI4,
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN3_CODER,
    "raw": RAW,
    "regex": REGEX,
}
PATTERN = r"CALL (?P<name>\w+)\((?P<arguments>.*?)\)"


class Thought(NamedTuple):
    """The prompt's end, a model's text, and the reasoning and content in it."""

    prompt: str
    text: str
    reasoning: str
    content: str


def _tags(opening: str, closing: str) -> list[Thought]:
    return [
        Thought("", f"{opening}I look.{closing}Hello.", "I look.", "Hello."),
        Thought(opening, f"I look.{closing}\n\nHello.", "I look.", "\n\nHello."),
        Thought(f"{opening}\n", "never closed", "never closed", ""),
        Thought(f"{opening}\n\n{closing}\n\n", "Answer", "", "Answer"),
        Thought(f"{opening}{closing}", '{"a": 1}', "", '{"a": 1}'),
        Thought("", f"\n{opening}\nGrüße 東京 🙂\n{closing}🙂", "\nGrüße 東京 🙂\n", "🙂"),
        Thought(opening, f"a {opening} b{closing} c {opening} d{closing}", f"a {opening} b", f" c {opening} d{closing}"),
        Thought(opening, f"{closing}", "", ""),
        Thought(opening, f"half {closing[:-1]}", f"half {closing[:-1]}", ""),
    ]


_NOTHING = [
    Thought("", "Just an answer.", "", "Just an answer."),
    Thought("What is <think>?", "A tag, </think> ends it.", "", "A tag, </think> ends it."),
]
THINK = [*_tags("<think>", "</think>"), *_NOTHING]
HARMONY = [
    Thought(
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
        "I look.",
        "Hi.",
    ),
    Thought("<|start|>assistant", "<|channel|>final<|message|>Hi.<|return|>", "", "Hi."),
    Thought("<|start|>assistant", "<|channel|>analysis<|message|>never closed", "never closed", ""),
    Thought(
        "<|start|>assistant",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
        "ab",
        "",
    ),
    Thought(
        "<|start|>assistant",
        "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>東京 🙂",
        "",
        "Let me see.東京 🙂",
    ),
    Thought("<|start|>assistant", "no channel at all", "", "no channel at all"),
    Thought("<|start|>assistant", "<|channel|>anal", "", "<|channel|>anal"),
    Thought(
        "<|start|>assistant",
        "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{}<|call|>",
        "x",
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
    ),
]
REASONING_FIXTURES: dict[str, list[Thought]] = {
    "deepseek_r1": [
        *_tags("<think>", "</think>"),
        Thought("", "abc</think>xyz", "abc", "xyz"),
        Thought("", "never closed", "never closed", ""),
    ],
    "deepseek_v3": THINK,
    "gemma4": [*_tags("<|channel>thought\n", "<channel|>"), *_NOTHING],
    "glm45": THINK,
    "granite": [*_tags("Here is my thought process:", "Here is my response:"), *THINK],
    "mistral": [*_tags("[THINK]", "[/THINK]"), *_NOTHING],
    "openai_gptoss": HARMONY,
    "qwen3": THINK,
    "seed_oss": [*_tags("<seed:think>", "</seed:think>"), *_NOTHING],
}
