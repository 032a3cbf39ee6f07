"""Pages of mapped files that nobody needs in memory any more."""

from __future__ import annotations

import mmap


def release_pages(buffer: mmap.mmap, offset: int, nbytes: int) -> None:
    """Take the pages that this range touches out of the process's memory; whoever looks there again gets them from the
    file."""
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    if nbytes and hasattr(mmap, "MADV_DONTNEED"):
        buffer.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)
