"""Rows that nobody asks for, left out of a recorded pass.

A pass selects the rows that become logits, and ends with that or with their logits. What comes before the selection and
treats each row by itself, back to the last attention, computes the same of the selected rows alone: of a prompt that is one
row in hundreds, so most of its last layer is left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.kernels.cpu.calls import Argument
from octavo.kernels.cpu.stand_ins import RESULTS, TOKENS, Call, Count, StandIn

_SELECT = "octavo_select_rows"
_ROW_BY_ROW = {
    "octavo_copy_columns",
    "octavo_experts",
    "octavo_layer_norm",
    "octavo_linear",
    "octavo_linear_heads",
    "octavo_rms_norm",
    "octavo_rms_norm_columns",
    "octavo_route",
    "octavo_silu_and_multiply",
    "octavo_soft_cap",
}


def select_early(calls: Sequence[Call]) -> list[Call]:
    """The calls with the selection as far to the front as it can be; as they are where there is not exactly one."""
    places = [i for i, (function, _) in enumerate(calls) if function.__name__ == _SELECT]
    if len(places) != 1:
        return list(calls)
    end = places[0]
    start = end
    while start > 0 and _is_row_by_row(calls[start - 1]):
        start -= 1
    inside = _arrays(calls[start:end])
    before, after = _arrays(calls[:start]), _arrays(calls[end + 1 :])
    select, arguments = calls[end]
    _, source, _, _, rows, _, selected = arguments
    if id(source) not in inside or inside.keys() & after.keys():
        return list(calls)
    narrow = {key: StandIn((Count(RESULTS), *array.shape[1:]), array.dtype) for key, array in inside.items()}
    narrow[id(source)] = selected
    selections = [
        (select, (arguments[0], array, Count(TOKENS), _width(array), rows, Count(RESULTS), narrow[key]))
        for key, array in inside.items()
        if key in before
    ]
    narrowed = [(function, tuple(_narrow(each, narrow) for each in given)) for function, given in calls[start:end]]
    return [*calls[:start], *selections, *narrowed, *calls[end + 1 :]]


def _is_row_by_row(call: Call) -> bool:
    function, arguments = call
    arrays = [each for each in arguments if isinstance(each, StandIn)]
    return function.__name__ in _ROW_BY_ROW and all(
        each.shape[0] == Count(TOKENS) and each.variable is None for each in arrays
    )


def _arrays(calls: Sequence[Call]) -> dict[int, StandIn]:
    return {id(each): each for _, arguments in calls for each in arguments if isinstance(each, StandIn)}


def _width(array: StandIn) -> int:
    return int(np.prod(array.shape[1:]))


def _narrow(argument: Argument, arrays: dict[int, StandIn]) -> Argument:
    if isinstance(argument, StandIn):
        return arrays[id(argument)]
    if isinstance(argument, Count) and argument.variable == TOKENS:
        return Count(RESULTS, argument.factor, argument.offset)
    return argument
