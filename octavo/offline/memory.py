"""Memory that is free, but not yet the operating system's again."""

from __future__ import annotations

import ctypes
import gc


def release_freed_memory() -> None:
    """Collect cycles, and have the C library return free pages: its allocator keeps arrays of up to 32 MiB that were freed
    to use them again (glibc's M_MMAP_THRESHOLD, which grows with use)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in every C library
    if trim is not None:
        trim(0)
