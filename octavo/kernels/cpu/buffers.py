"""Addresses of numpy arrays for the native library, checked on the way and cheap: every step asks for some ten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import addressof, c_char
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

FLOAT32 = np.dtype(np.float32)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)
UINT8 = np.dtype(np.uint8)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
INT8 = np.dtype(np.int8)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)

DTYPE_CODES = {FLOAT32: 0, BFLOAT16: 1, FLOAT16: 2}
CACHE_DTYPE_CODES = {**DTYPE_CODES, INT8: 3, FLOAT8: 4}

# Five times as quick as array.ctypes.data; refuses what is not writable and C-contiguous.
_view: Callable[[Any], c_char] = c_char.from_buffer


def address(array: NDArray[Any], dtype: np.dtype[Any] = FLOAT32) -> int:
    """Where the data of a C-contiguous array of `dtype` lies. ValueError for any other array."""
    if array.dtype != dtype:
        raise ValueError(f"expected an array of {dtype}, got {array.dtype}")
    try:
        return addressof(_view(array))
    except (TypeError, ValueError, BufferError):  # read-only, empty or not contiguous
        if not array.flags.c_contiguous:
            raise ValueError(
                f"expected a C-contiguous array, got shape {array.shape} with strides {array.strides}"
            ) from None
        return int(array.ctypes.data)


def writable_address(array: NDArray[Any]) -> int:
    """`address` of a float32 array that is to be changed. ValueError if it is read-only."""
    if not array.flags.writeable:
        raise ValueError("cannot write into a read-only array")
    return address(array)


def dtype_code(dtype: np.dtype[Any]) -> int:
    """The library's number of a weight's dtype. ValueError for anything but float32, bfloat16 and float16."""
    return _code(dtype, DTYPE_CODES)


def cache_dtype_code(dtype: np.dtype[Any]) -> int:
    """The library's number of a cache's dtype: those of the weights, int8 or float8_e4m3fn, or a ValueError."""
    return _code(dtype, CACHE_DTYPE_CODES)


def _code(dtype: np.dtype[Any], codes: Mapping[np.dtype[Any], int]) -> int:
    code = codes.get(np.dtype(dtype))
    if code is None:
        *names, last = map(str, codes)
        raise ValueError(f"expected {', '.join(names)} or {last}, got {dtype}")
    return code
