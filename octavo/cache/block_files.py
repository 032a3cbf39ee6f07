"""Blocks in files: the third place, bounded in size, which survives the process and may be deleted at any time.

One file a block: <directory>/<identity>/<digest>.kv. The identity says whose blocks these are (the model, the dtype, the
layout: all that the content depends on beside the tokens). A file begins with a magic word, the identity, the block's
digest, and SHA-256 of these and the content; what does not match is not used. Files are written under another name and
renamed, so that a crash leaves no half one behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from hashlib import sha256
from pathlib import Path
from typing import Any

from octavo.cache.host_pool import HostBlock
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)

_MAGIC = b"octavo kv block 1\n".ljust(32, b"\0")
HEADER_BYTES = 4 * 32
_LOCK = "octavo.lock"
_FOLDER = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[0-9a-f]{64}\.(kv|tmp)")


def _open_own(path: str, flags: int) -> int:
    """For `open`: in a directory that others may write to, what lies in the place of a file of ours neither leads elsewhere
    nor makes anybody wait. OSError if it is no plain file."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", path)
    return descriptor


class LockedDirectory:
    """A directory that no other process uses so."""

    def __init__(self, path: Path) -> None:
        """Made if it does not exist. ConfigError if it cannot be used, or another process uses it."""
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.fdopen(_open_own(str(path / _LOCK), os.O_WRONLY | os.O_CREAT), "wb")
        except OSError as error:
            raise self.unusable(error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            if isinstance(error, BlockingIOError):
                raise ConfigError(f"--kv-offload-dir {path} is used by another process; give each its own") from None
            raise self.unusable(error) from None

    def unusable(self, error: OSError) -> ConfigError:
        """What to say when it cannot be read or written."""
        return ConfigError(f"--kv-offload-dir {self.path} cannot be used: {error.strerror or error}")

    def close(self) -> None:
        """Let other processes have it."""
        self._lock.close()


class _File:
    """One that is there, or is being written."""

    __slots__ = ("is_complete", "size")

    def __init__(self, size: int, *, is_complete: bool) -> None:
        self.size = size
        self.is_complete = is_complete


class BlockFiles:
    """At most `limit` bytes of files. Everything is decided and counted on the caller's thread; two executors, of one thread
    each, read and write, and `completed` says what came of it.

    The least recently used files go first, those of other models included. Other things in the directory are never touched.
    """

    def __init__(
        self,
        directory: LockedDirectory,
        limit: int,
        identity: bytes,
        slot: Callable[[int], memoryview],
        *,
        reader: Executor,
        writer: Executor,
    ) -> None:
        """`identity` is 32 bytes; `slot` gives the memory of a slot of host memory. ConfigError if the directory cannot be
        read."""
        self.num_bytes = 0
        self.gone: list[bytes] = []  # digests of blocks whose files were given up; whoever reads them empties the list
        self._lock, self._directory = directory, directory.path
        self._limit, self._identity, self._slot = limit, identity, slot
        self._reader, self._writer = reader, writer
        self._files: OrderedDict[str, _File] = OrderedDict()  # by path below the directory, the next to go first
        self._loads: dict[HostBlock, Future[Any]] = {}
        self._saves: dict[HostBlock, _File] = {}
        self._ended: deque[tuple[HostBlock, bool]] = deque()  # filled by the executors' threads
        self._has_warned = False
        try:
            self._find_files()
        except OSError as error:
            raise directory.unusable(error) from None

    def __contains__(self, digest: bytes) -> bool:
        """Whether there is a whole file of the block."""
        file = self._files.get(self._name(digest))
        return file is not None and file.is_complete

    def __len__(self) -> int:
        """Files, those of other models and unfinished ones included."""
        return len(self._files)

    @property
    def in_progress(self) -> list[HostBlock]:
        """The blocks that are being read or written."""
        return [*self._loads, *self._saves]

    def save(self, block: HostBlock) -> bool:
        """Begin to write a block, and to delete old files in its favour. False if it has a file, or cannot have one."""
        name, content = self._name(block.digest), self._slot(block.slot)
        size = HEADER_BYTES + content.nbytes
        if name in self._files or size > self._limit:
            return False
        self._make_room(size)
        file = self._files[name] = self._saves[block] = _File(size, is_complete=False)
        self.num_bytes += file.size
        self._writer.submit(self._write, name, block, content)
        return True

    def load(self, block: HostBlock) -> None:
        """Begin to read a block, of which there is a file, into its slot."""
        name = self._name(block.digest)
        self._files.move_to_end(name)
        self._loads[block] = self._reader.submit(self._read, name, block, self._slot(block.slot))

    def is_loading(self, block: HostBlock) -> bool:
        """Whether a load of this block has not been `completed`."""
        return block in self._loads

    def wait(self, block: HostBlock) -> None:
        """Until `completed` can say what came of a load."""
        self._loads[block].result()

    def completed(self) -> list[tuple[HostBlock, bool]]:
        """The loads and saves that have ended since the last call, each with whether it succeeded. A file that could not be
        read is forgotten."""
        ended = []
        while self._ended:
            block, succeeded = self._ended.popleft()
            name = self._name(block.digest)
            file = self._saves.pop(block, None)
            if file is None:
                del self._loads[block]
                if not succeeded and name in self._files:
                    self._give_up(name)
            elif succeeded:
                file.is_complete = True
            elif self._files.get(name) is file:
                self._give_up(name)
            ended.append((block, succeeded))
        return ended

    def forget(self, digest: bytes) -> None:
        """Delete the block's file, if it has one or gets one."""
        name = self._name(digest)
        if name in self._files:
            self._give_up(name)

    def clear(self) -> None:
        """Delete this model's files, those that are being written included."""
        for name in [name for name in self._files if name.startswith(self._identity.hex())]:
            self._give_up(name)

    def close(self) -> None:
        """Finish what was begun, and let other processes have the directory."""
        self._reader.shutdown()
        self._writer.shutdown()
        self._lock.close()

    def _name(self, digest: bytes) -> str:
        return f"{self._identity.hex()}/{digest.hex()}.kv"

    def _find_files(self) -> None:
        """Take over what an earlier process left, the least recently used first."""
        found = []
        for folder in filter(lambda entry: _FOLDER.fullmatch(entry.name), os.scandir(self._directory)):
            for entry in filter(lambda entry: _FILE.fullmatch(entry.name), os.scandir(folder)):
                if entry.name.endswith(".tmp"):
                    os.unlink(entry)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, f"{folder.name}/{entry.name}", status.st_size))
        for _, name, size in sorted(found):
            self._files[name] = _File(size, is_complete=True)
            self.num_bytes += size
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        while self.num_bytes + size > self._limit:
            self._give_up(next(iter(self._files)))

    def _give_up(self, name: str) -> None:
        self.num_bytes -= self._files.pop(name).size
        folder, _, file = name.partition("/")
        if folder == self._identity.hex():
            self.gone.append(bytes.fromhex(file.removesuffix(".kv")))
        self._writer.submit(self._delete, name)

    # -- on the executors' threads --------------------------------------------------------------------------------

    def _write(self, name: str, block: HostBlock, content: memoryview) -> None:
        path = self._directory / name
        unfinished = path.with_suffix(".tmp")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(unfinished, "wb", opener=_open_own) as file:
                file.write(self._header(block.digest, content))
                file.write(content)
            unfinished.replace(path)
            self._ended.append((block, True))
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            self._warn("A KV block cannot be written to %s: %s", self._directory, error.strerror)
            self._ended.append((block, False))

    def _read(self, name: str, block: HostBlock, content: memoryview) -> None:
        path = self._directory / name
        header = bytearray(HEADER_BYTES)
        try:
            with open(path, "rb", opener=_open_own) as file:
                size = file.readinto(header) + file.readinto(content) + len(file.read(1))
            os.utime(path)
        except OSError:  # deleted meanwhile
            size = 0
        is_whole = size == HEADER_BYTES + content.nbytes and header == self._header(block.digest, content)
        if size and not is_whole:
            self._warn("%s is damaged, and deleted", path)
        self._ended.append((block, is_whole))

    def _delete(self, name: str) -> None:
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            self._warn("%s cannot be deleted: %s", self._directory / name, error.strerror)

    def _header(self, digest: bytes, content: memoryview) -> bytes:
        start = _MAGIC + self._identity + digest
        checksum = sha256(start)
        checksum.update(content)
        return start + checksum.digest()

    def _warn(self, message: str, *arguments: object) -> None:
        """Once: a full disk would fill the log as well."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(message, *arguments)
