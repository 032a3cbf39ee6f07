"""Where chat templates run: jinja2's immutable sandbox, with limits on what a rendering may cost.

The sandbox keeps a template away from Python (no underscore attributes, no changes to its arguments). The limits keep it
from taking the process down. Every loop turn, call, filter, operator and printed value is charged, by the size of what
it makes, to a budget of `OPERATIONS`; a rendering also ends after `CPU_SECONDS` of its thread's time. Sizes that could
explode in one operation (repeating, padding, joining, formatting, powers) are charged, or refused, before it runs.
Templates cannot include or import others.

Imports jinja2, so it is imported when the first template is compiled.
"""

from __future__ import annotations

import functools
import json
import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

OPERATIONS = 10_000_000  # a loop turn, call or filter costs 16, an element of a list 1, eight characters 1
CPU_SECONDS = 5.0
_TURN = 16
_MAX_WIDTH = 10_000  # characters that padding or indenting may add to a line
_MAX_INTEGER_BITS = 4096
_REFUSED_METHODS = frozenset({"expandtabs", "translate", "maketrans"})
_PADDING_METHODS = frozenset({"ljust", "rjust", "center", "zfill"})
_REFUSED_FILTERS = ("urlize", "wordwrap", "pprint", "random", "xmlattr", "forceescape")
_WIDE = re.compile(r"\d{5,}")  # in a format specification
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{5,})")


class TemplateLimitError(SecurityError):
    """A rendering costs more than it may."""


class Meter:
    """What one rendering (or compilation) has cost so far."""

    def __init__(self) -> None:
        self._left = OPERATIONS
        self._checks = 0
        self._deadline = time.thread_time() + CPU_SECONDS

    def charge(self, cost: int) -> None:
        """Pay for an operation that is about to happen, or has happened."""
        self._left -= cost
        self._checks += 1
        if self._left < 0:
            raise TemplateLimitError("it needs too many operations")
        if (cost > 256 or not self._checks & 0x3F) and time.thread_time() > self._deadline:
            raise TemplateLimitError(f"it takes longer than {CPU_SECONDS:.0f} seconds")

    def weigh(self, value: Any) -> Any:
        """Charge the size of a value, with all that it holds, and return it."""
        kind = type(value)
        if kind is str:
            self.charge(1 + len(value) // 8)
        elif kind in _CONTAINERS:
            self._weigh_all(value)
        elif kind is int and value.bit_length() > _MAX_INTEGER_BITS:
            raise TemplateLimitError("a number is too large")
        return value

    def _weigh_all(self, value: Any) -> None:
        stack = [value]
        while stack:
            item = stack.pop()
            kind = type(item)
            if kind is str:
                self.charge(1 + len(item) // 8)
            elif kind in _CONTAINERS:
                self.charge(1 + len(item))
                stack.extend(item.values() if kind is dict else item)


_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_METER: ContextVar[Meter] = ContextVar("octavo_template_meter")


@contextmanager
def metered() -> Iterator[Meter]:
    """The budget of everything that compiles or renders inside."""
    meter = Meter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """With the globals, filters and tags that Hugging Face's chat templates rely on."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], finalize=_finalize)
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters = {name: _metered_filter(name, function) for name, function in self.filters.items()}
        del self.globals["lipsum"]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace)

    def count_turns(self, items: Iterable[Any], cost: int) -> Iterator[Any]:
        """Put round what a loop iterates over."""
        meter = _METER.get()
        for item in items:
            meter.charge(cost)
            yield item

    def join_text(self, *parts: Any) -> str:
        """The operator `~`."""
        meter = _METER.get()
        return cast(str, meter.weigh("".join([str(meter.weigh(part)) for part in parts])))

    def weigh(self, value: Any) -> Any:
        """Put round list, tuple and dict literals: what is nested doubles quickly."""
        return _METER.get().weigh(value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # a meter, which takes no keywords (jinja2 adds some inside loops)
            return __obj(*args)
        meter = _METER.get()
        meter.charge(_TURN)
        if isinstance(__obj, LoopContext):
            args = (__self.count_turns(args[0], _TURN), *args[1:])
        elif isinstance(owner, int) and __obj.__name__ == "to_bytes":
            raise TemplateLimitError("int.to_bytes is not available")
        elif isinstance(owner, str | bytes):
            args = _checked_text_call(meter, owner, __obj.__name__, args)
        return meter.weigh(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _METER.get()
        meter.charge(1)
        if operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            meter.charge(len(left) + len(right))
            return super().call_binop(context, operator, left, right)
        if operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(items, str | list | tuple) and isinstance(times, int):
                    meter.charge(max(0, times) * (1 + len(items)) // 8)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > _MAX_INTEGER_BITS:
                raise TemplateLimitError("a number is too large")
        elif operator == "%" and isinstance(left, str) and _WIDE_PERCENT.search(left):
            raise TemplateLimitError("a format is too wide")
        return meter.weigh(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format is sandboxed by jinja2; refused here are nested and wide formats."""
        if getattr(value, "__name__", None) in ("format", "format_map") and isinstance(
            getattr(value, "__self__", None), str
        ):
            for _, _, specification, _ in string.Formatter().parse(value.__self__):
                if specification and ("{" in specification or _WIDE.search(specification)):
                    raise TemplateLimitError("a format is too wide")
        return super().wrap_str_format(value)

    def _generate(self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False) -> str:
        """The hook that jinja2 offers between parsing and compiling."""
        return super()._generate(cast(nodes.Template, _Meters().visit(source)), name, filename, defer_init)


class _Meters(NodeTransformer):
    """Puts the environment's meters round loops, `~` and literals that hold values."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        cost = _TURN + sum(map(_literal_cost, node.body))
        self.generic_visit(node)
        node.iter = _call("count_turns", [cast(nodes.Expr, node.iter), nodes.Const(cost)], node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("join_text", node.nodes, node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _call("weigh", [node], node) if any(not isinstance(item, nodes.Const) for item in node.items) else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant or node.ctx != "load" else _call("weigh", [node], node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _call("weigh", [node], node) if node.items else node


def _call(method: str, arguments: list[nodes.Expr], node: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method).set_lineno(node.lineno)
    return cast(nodes.Call, nodes.Call(function, arguments, [], None, None).set_lineno(node.lineno))


def _literal_cost(node: nodes.Node) -> int:
    own = [node] if isinstance(node, nodes.TemplateData) else []
    return sum(len(data.data) for data in [*own, *node.find_all(nodes.TemplateData)]) // 8


class GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Skip the tag and return its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateRaisedError(TemplateError):
    """The template called `raise_exception`."""


def _raise_exception(message: Any) -> None:
    raise TemplateRaisedError(str(message))


def _strftime_now(format: str) -> str:
    if re.search(r"\d{3,}", format):
        raise TemplateLimitError("a format is too wide")
    return datetime.now().strftime(format)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Unlike jinja2's own, without escapes for HTML."""
    _check_width(indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _finalize(value: Any) -> Any:
    return _METER.get().weigh(value)


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Charges a filter's input and its result."""
    position = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.charge(_TURN)
        value = args[position] if len(args) > position else None
        others = [*args[position + 1 :], *kwargs.values()]
        meter.charge(len(value) if isinstance(value, range) else 0)
        meter.weigh(value)
        if name in ("replace", "join"):
            length = len(value) if isinstance(value, Sized) else 0
            meter.charge(sum(length * len(other) for other in others if isinstance(other, str)) // 8)
        elif name == "format" and isinstance(value, str) and _WIDE_PERCENT.search(value):
            raise TemplateLimitError("a format is too wide")
        elif name in ("center", "indent", "batch", "slice", "round"):
            for other in others:
                _check_width(other)
        return meter.weigh(function(*args, **kwargs))

    return run


def _check_width(value: Any) -> None:
    if (isinstance(value, int) and abs(value) > _MAX_WIDTH) or (isinstance(value, str) and len(value) > _MAX_WIDTH):
        raise TemplateLimitError("a width is too large")


def _checked_text_call(meter: Meter, text: str | bytes, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charge a method of str before it runs; the arguments, with an iterator that `join` would drain made a list."""
    meter.charge(len(text) // 8)
    if method in _REFUSED_METHODS:
        raise TemplateLimitError(f"str.{method} is not available")
    if method in _PADDING_METHODS:
        for argument in args:
            _check_width(argument)
    elif method == "replace" and len(args) > 1 and isinstance(text, str) and all(isinstance(a, str) for a in args[:2]):
        meter.charge(text.count(args[0]) * len(args[1]) // 8)
    elif method == "join" and args:
        items = list(args[0])
        meter.charge(len(items) * (1 + len(text)) // 8)
        return (meter.weigh(items), *args[1:])
    return args


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, without the type behind them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """jinja2's namespace, closed to underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the name {name!r}")
