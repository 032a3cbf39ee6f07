"""Finds and loads the native library (native/include/octavo.h), and turns its failures into exceptions."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path

ABI_VERSION = 12
ISAS = ("amx", "avx512_bf16", "avx512", "avx2", "generic")  # best first
EMULATED_ISAS = ("amx_emulated",)  # on every processor, slowly, for tests

_POINTER, _SIZE, _CODE = c_void_p, c_int64, c_int32

# name -> (result, arguments), in the order of octavo.h
_PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "octavo_abi_version": (_CODE, ()),
    "octavo_last_error": (c_char_p, ()),
    "octavo_isa_supported": (_CODE, (c_char_p,)),
    "octavo_isa_trial": (_CODE, (c_char_p,)),
    "octavo_open": (_POINTER, (c_char_p, _CODE)),
    "octavo_close": (None, (_POINTER,)),
    "octavo_pin": (_CODE, (_POINTER, _POINTER, _SIZE)),
    "octavo_weight_new": (_POINTER, (_POINTER, _CODE, _SIZE, _CODE, _CODE, _CODE, _SIZE, _SIZE)),
    "octavo_weight_pack": (_CODE, (_POINTER, _POINTER, _POINTER, _CODE, _SIZE, _SIZE)),
    "octavo_weight_put": (_CODE, (*[_POINTER] * 6, _SIZE, _SIZE, _SIZE)),
    "octavo_weight_order": (_CODE, (_POINTER, _POINTER)),
    "octavo_weight_stack": (_POINTER, (_POINTER, _SIZE)),
    "octavo_weight_bias": (_CODE, (_POINTER, _POINTER)),
    "octavo_weight_bytes": (_SIZE, (_POINTER,)),
    "octavo_weight_free": (None, (_POINTER,)),
    "octavo_dequantize": (_CODE, (_POINTER, _POINTER, _SIZE, _CODE, _SIZE, _CODE, _POINTER)),
    "octavo_linear": (_CODE, (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _CODE)),
    "octavo_embedding": (_CODE, (_POINTER, _POINTER, _POINTER, _SIZE, c_float, _POINTER, _CODE)),
    "octavo_select_rows": (_CODE, (_POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _SIZE, _POINTER)),
    "octavo_linear_heads": (_CODE, (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER)),
    "octavo_copy_columns": (_CODE, (_POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _SIZE, _SIZE)),
    "octavo_route": (
        _CODE,
        (_POINTER, _POINTER, _SIZE, _SIZE, _CODE, _SIZE, _SIZE, _SIZE, _SIZE, _CODE, c_float, _POINTER, _POINTER),
    ),
    "octavo_experts": (
        _CODE,
        (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _CODE),
    ),
    "octavo_rms_norm": (_CODE, (_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, c_float, _POINTER, _CODE)),
    "octavo_rms_norm_columns": (_CODE, (_POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _POINTER, _SIZE, c_float)),
    "octavo_layer_norm": (_CODE, (_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, c_float, _POINTER)),
    "octavo_soft_cap": (_CODE, (_POINTER, _POINTER, _SIZE, _SIZE, c_float)),
    "octavo_silu_and_multiply": (_CODE, (_POINTER, _POINTER, _SIZE, _SIZE, _POINTER)),
    "octavo_cache_new": (_POINTER, (_POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _SIZE, _CODE)),
    "octavo_cache_bytes": (_SIZE, (_POINTER,)),
    "octavo_cache_block_bytes": (_SIZE, (_POINTER,)),
    "octavo_cache_copy": (_CODE, (_POINTER, _POINTER, _SIZE)),
    "octavo_cache_swap_out": (_CODE, (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE)),
    "octavo_cache_swap_in": (_CODE, (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE)),
    "octavo_cache_free": (None, (_POINTER,)),
    "octavo_cache_write": (
        _CODE,
        (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _POINTER, _CODE),
    ),
    "octavo_attention": (
        _CODE,
        (
            *(_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE),
            *(c_float, _SIZE, c_float, _POINTER, _CODE, _POINTER),
        ),
    ),
    "octavo_sample": (_CODE, (_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER)),
    "octavo_score_rows": (_CODE, (_POINTER, _POINTER, _SIZE)),
    "octavo_program_new": (_POINTER, ()),
    "octavo_program_add": (_CODE, (_POINTER, c_char_p, _POINTER, _SIZE)),
    "octavo_program_run": (_CODE, (_POINTER, _POINTER, _SIZE)),
    "octavo_program_free": (None, (_POINTER,)),
}


class LibraryUnavailable(Exception):
    """The native library was not built or cannot be loaded; the message says why, in a few words."""


def _files() -> list[Path]:
    return sorted(Path(__file__).parent.glob("liboctavo_cpu.*"))


@cache
def library_digest() -> str:
    """16 hexadecimal digits that change with every build."""
    return sha256(_files()[0].read_bytes()).hexdigest()[:16]


@cache
def load_library() -> ctypes.CDLL:
    """The library beside this file, with all prototypes set. LibraryUnavailable if there is none that fits."""
    found = _files()
    if not found:
        raise LibraryUnavailable("the native kernels were not built (no C++ compiler when Octavo was installed)")
    try:
        library = ctypes.CDLL(str(found[0]))
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise LibraryUnavailable(f"the native kernels cannot be loaded ({error})") from error
    if library.octavo_abi_version() != ABI_VERSION:
        raise LibraryUnavailable("the native kernels are of another version; build them again")
    return library


def supported_isas() -> tuple[str, ...]:
    """The instruction sets that are compiled in and that this processor has, best first."""
    library = load_library()
    return tuple(isa for isa in ISAS if library.octavo_isa_supported(isa.encode()))


def failure(status: int) -> Exception:
    """The exception for a status of the library other than 0, with the library's own message."""
    message = (load_library().octavo_last_error() or b"").decode(errors="replace")
    return {2: MemoryError, 3: IndexError}.get(status, ValueError)(message)


def last_failure() -> Exception:
    """The same for a function that gave no handle."""
    message = (load_library().octavo_last_error() or b"").decode(errors="replace")
    return MemoryError(message) if message == "out of memory" else ValueError(message)
