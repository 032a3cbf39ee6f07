"""Which weights a path holds, said without reading all of them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

_WHOLE = 1 << 20  # bytes: files up to this size are read whole
_PIECE, _PIECES = 4096, 64


def fingerprint(path: Path) -> str:
    """64 hexadecimal digits for a model directory or file: of its configuration, and of the names, sizes, times and samples
    of its weight files. Another model never has the same; a copy with new times has others."""
    files = [path] if path.is_file() else [path / "config.json", *sorted(path.glob("*.safetensors"))]
    digest = sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        _add_samples(digest, file, status.st_size)
    return digest.hexdigest()


def _add_samples(digest: _Hash, file: Path, size: int) -> None:
    with file.open("rb") as content:
        if size <= _WHOLE:
            digest.update(content.read())
            return
        for piece in range(_PIECES):
            content.seek((size - _PIECE) * piece // (_PIECES - 1))
            digest.update(content.read(_PIECE))
