"""What Python says of the library's functions and records is what its header says."""

from __future__ import annotations

import re
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from octavo.kernels.cpu import buffers, library, products, sampling, scoring, weights
from octavo.kernels.ops import ACTIVATIONS, UNGATED
from octavo.sampling.sampler import MASKED, NO_SEED, NOT_FINITE

ROOT = Path(__file__).resolve().parent.parent.parent
HEADER = re.sub(r"/\*.*?\*/", "", (ROOT / "native/include/octavo.h").read_text("utf-8"), flags=re.DOTALL)
CODES = {name: int(number) for name, number in re.findall(r"OCTAVO_(\w+) = (-?\d+)", HEADER)}
NUMBERS: dict[str, Any] = {"void": None, "int": c_int32, "int32_t": c_int32, "int64_t": c_int64, "float": c_float}


def ctype(declared: str) -> Any:
    """Of `const float* x` or `int64_t rows`: c_void_p or c_int64."""
    if "*" in declared:
        is_text = re.fullmatch(r"const char\s*\* ?(isa|function)?", declared.strip())
        return c_char_p if is_text else c_void_p
    return NUMBERS[declared.split()[0]]


def test_every_function_has_the_arguments_of_the_header() -> None:
    declared = re.findall(r"OCTAVO_API ([^;(]*?)(octavo_\w+)\(([^;]*)\);", HEADER)
    functions = {
        name: (ctype(result), () if arguments == "void" else tuple(map(ctype, arguments.split(","))))
        for result, name, arguments in declared
    }
    assert functions == library._PROTOTYPES


def test_the_version_is_the_header_s() -> None:
    (version,) = re.findall(r"#define OCTAVO_ABI_VERSION (\d+)", HEADER)
    assert int(version) == library.ABI_VERSION


def fields(record: str) -> list[tuple[str, int]]:
    """Names and numbers of eight bytes each, in order."""
    (body,) = re.findall(r"typedef struct \{([^}]*)\} " + record, HEADER)
    found = []
    for line in filter(None, map(str.strip, body.split(";"))):
        for each in re.sub(r"^(const )?\w+(?=[ *])", "", line).split(","):
            name, count = re.fullmatch(r"[ *]*(\w+)(?:\[(\d)\])?", each).groups()  # type: ignore[union-attr]
            found.append((name, int(count or 1)))
    return found


def test_records_have_the_fields_of_the_header() -> None:
    for record, dtype in (("octavo_sampling_row", sampling._ROW), ("octavo_score", scoring._SCORE)):
        assert dtype.names is not None
        shapes = [np.dtype(dtype[name]).itemsize // 8 for name in dtype.names]
        assert list(zip(dtype.names, shapes, strict=True)) == fields(record)


def test_codes_are_the_header_s() -> None:
    integers = {(8, False): "INT8", (4, True): "INT4", (8, True): "GROUPED_INT8", (5, True): "INT5", (6, True): "INT6"}
    assert {kind: CODES[f"{name}_A16"] for kind, name in integers.items()} == weights._INTEGERS
    assert (CODES["FLOAT4_A16"], CODES["FLOAT8"]) == (weights._FLOAT4, weights._FLOAT8)
    for name in (*integers.values(), "FLOAT4"):
        assert CODES[f"{name}_A8"] == CODES[f"{name}_A16"] + 1
    offsets = {"none": "NO_OFFSET", "zero": "ZERO", "least": "LEAST"}
    assert {name: CODES[code] for name, code in offsets.items()} == weights._OFFSETS
    assert CODES["BYTES_AND_FACTORS"] == weights._BYTES_AND_FACTORS
    gates = {name: CODES[name.upper()] for name in ACTIVATIONS}
    ungated = {UNGATED + name: code + CODES["UNGATED"] for name, code in gates.items()}
    assert {None: CODES["NO_ACTIVATION"], **gates, **ungated} == weights._ACTIVATIONS
    assert {name: CODES[name.upper()] for name in ("softmax", "sigmoid")} == products._SCORINGS
    for dtype, code in buffers.DTYPE_CODES.items():
        assert code == CODES[dtype.name.upper()]
    assert buffers.CACHE_DTYPE_CODES[buffers.INT8] == CODES["CACHE_INT8"]
    assert buffers.CACHE_DTYPE_CODES[buffers.FLOAT8] == CODES["CACHE_FLOAT8"]
    errors = {"MASKED": MASKED, "NOT_FINITE": NOT_FINITE, "NO_SEED": NO_SEED}
    assert {CODES[f"TOKEN_{name}"]: error for name, error in errors.items()} == sampling._ERRORS
