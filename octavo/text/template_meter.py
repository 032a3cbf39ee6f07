"""What a chat template may cost: a budget that every operation of a rendering is charged to.

Cost follows size, so that `OPERATIONS` bounds time and memory alike; besides, a rendering ends after `CPU_SECONDS` of its
thread's time. What could explode in one operation (repeating, padding, joining, replacing, powers, wide formats) is
charged, or refused, before it runs.
"""

from __future__ import annotations

import re
import string
import time
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError

OPERATIONS = 10_000_000  # a loop turn, call or filter costs 16, an element of a list 1, eight characters 1
CPU_SECONDS = 5.0
TURN = 16
_MAX_WIDTH = 10_000  # characters that padding or indenting may add to a line
_MAX_INTEGER_BITS = 4096
_REFUSED_METHODS = frozenset({"expandtabs", "translate", "maketrans"})
_PADDING_METHODS = frozenset({"ljust", "rjust", "center", "zfill"})
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
METER: ContextVar[Meter] = ContextVar("octavo_template_meter")


@contextmanager
def metered() -> Iterator[Meter]:
    """The budget of everything that compiles or renders inside."""
    meter = Meter()
    token = METER.set(meter)
    try:
        yield meter
    finally:
        METER.reset(token)


def before_operator(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Charge or refuse `+`, `*`, `**` and `%`."""
    meter.charge(1)
    if operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
        meter.charge(len(left) + len(right))
    elif operator == "*":
        for items, times in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple) and isinstance(times, int):
                meter.charge(max(0, times) * (1 + len(items)) // 8)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > _MAX_INTEGER_BITS:
            raise TemplateLimitError("a number is too large")
    elif operator == "%" and isinstance(left, str):
        check_percent_format(left)


def before_filter(meter: Meter, name: str, value: Any, others: Sequence[Any]) -> None:
    """Charge a filter's input, and refuse widths that would explode."""
    meter.charge(TURN + (len(value) if isinstance(value, range) else 0))
    meter.weigh(value)
    if name in ("replace", "join"):
        length = len(value) if isinstance(value, Sized) else 0
        meter.charge(sum(length * len(other) for other in others if isinstance(other, str)) // 8)
    elif name == "format" and isinstance(value, str):
        check_percent_format(value)
    elif name in ("center", "indent", "batch", "slice", "round"):
        for other in others:
            check_width(other)


def before_text_method(meter: Meter, text: str | bytes, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charge a method of str; its arguments, with an iterator that `join` would drain made a list."""
    meter.charge(len(text) // 8)
    if method in _REFUSED_METHODS:
        raise TemplateLimitError(f"str.{method} is not available")
    if method in _PADDING_METHODS:
        for argument in args:
            check_width(argument)
    elif method == "replace" and len(args) > 1 and isinstance(text, str) and all(isinstance(a, str) for a in args[:2]):
        meter.charge(text.count(args[0]) * len(args[1]) // 8)
    elif method == "join" and args:
        items = list(args[0])
        meter.charge(len(items) * (1 + len(text)) // 8)
        return (meter.weigh(items), *args[1:])
    return args


def check_width(value: Any) -> None:
    """TemplateLimitError for a number of characters, or characters, that would be repeated on every line."""
    if (isinstance(value, int) and abs(value) > _MAX_WIDTH) or (isinstance(value, str) and len(value) > _MAX_WIDTH):
        raise TemplateLimitError("a width is too large")


def check_percent_format(text: str) -> None:
    """TemplateLimitError for a width of five digits, or one that comes with the values."""
    if _WIDE_PERCENT.search(text):
        raise TemplateLimitError("a format is too wide")


def check_format(text: str) -> None:
    """The same for `str.format`. ValueError for a text that is no format."""
    for _, _, specification, _ in string.Formatter().parse(text):
        if specification and ("{" in specification or _WIDE.search(specification)):
            raise TemplateLimitError("a format is too wide")
