"""Where chat templates run: jinja2's immutable sandbox, with limits on what a rendering may cost.

The sandbox keeps a template away from Python (no underscore attributes, no changes to its arguments). The limits of
`octavo.text.template_meter` keep it from taking the process down: every loop turn, call, filter, operator and printed
value is charged. Templates cannot include or import others.

Imports jinja2, so it is imported when the first template is compiled.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
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

from octavo.text.template_meter import (
    METER,
    TURN,
    TemplateLimitError,
    before_filter,
    before_operator,
    before_text_method,
    check_format,
    check_width,
)

_REFUSED_FILTERS = ("urlize", "wordwrap", "pprint", "random", "xmlattr", "forceescape")


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
        meter = METER.get()
        for item in items:
            meter.charge(cost)
            yield item

    def join_text(self, *parts: Any) -> str:
        """The operator `~`."""
        meter = METER.get()
        return cast(str, meter.weigh("".join([str(meter.weigh(part)) for part in parts])))

    def weigh(self, value: Any) -> Any:
        """Put round list, tuple and dict literals: what is nested doubles quickly."""
        return METER.get().weigh(value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # a meter, which takes no keywords (jinja2 adds some inside loops)
            return __obj(*args)
        meter = METER.get()
        meter.charge(TURN)
        if isinstance(__obj, LoopContext):
            args = (__self.count_turns(args[0], TURN), *args[1:])
        elif isinstance(owner, int) and __obj.__name__ == "to_bytes":
            raise TemplateLimitError("int.to_bytes is not available")
        elif isinstance(owner, str | bytes):
            args = before_text_method(meter, owner, __obj.__name__, args)
        return meter.weigh(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        before_operator(meter, operator, left, right)
        if operator == "+" and isinstance(left, list | tuple):
            return super().call_binop(context, operator, left, right)  # charged by its length: lists grow in loops
        return meter.weigh(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format is sandboxed by jinja2; refused here are nested and wide formats."""
        if getattr(value, "__name__", None) in ("format", "format_map") and isinstance(
            getattr(value, "__self__", None), str
        ):
            check_format(value.__self__)
        return super().wrap_str_format(value)

    def _generate(self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False) -> str:
        """The hook that jinja2 offers between parsing and compiling."""
        return super()._generate(cast(nodes.Template, _Meters().visit(source)), name, filename, defer_init)


class _Meters(NodeTransformer):
    """Puts the environment's meters round loops, `~` and literals that hold values."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        cost = TURN + sum(map(_literal_cost, node.body))
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
    check_width(indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _finalize(value: Any) -> Any:
    return METER.get().weigh(value)


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Charges a filter's input and its result."""
    position = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        value = args[position] if len(args) > position else None
        before_filter(meter, name, value, [*args[position + 1 :], *kwargs.values()])
        return meter.weigh(function(*args, **kwargs))

    return run


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
