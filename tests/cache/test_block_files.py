"""Blocks in files: found by the next process, by no other model, never damaged, never more than allowed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from octavo.cache.block_files import HEADER_BYTES, BlockFiles, LockedDirectory
from octavo.cache.host_pool import HostBlock
from octavo.errors import ConfigError
from tests.cache.executors import Disk

BLOCK = 100  # bytes
FILE = HEADER_BYTES + BLOCK
OURS, THEIRS = b"o" * 32, b"t" * 32


def digest(number: int) -> bytes:
    return bytes([number]) * 32


class Store:
    """Files, and the host memory of `slots` blocks that they are read into."""

    def __init__(self, directory: Path, limit: int = 100 * FILE, identity: bytes = OURS) -> None:
        self.disk = Disk()
        self.memory = bytearray(20 * BLOCK)
        self.files = BlockFiles(LockedDirectory(directory), limit, identity, self.slot, reader=self.disk, writer=self.disk)

    def slot(self, number: int) -> memoryview:
        return memoryview(self.memory)[number * BLOCK : (number + 1) * BLOCK]

    def save(self, *numbers: int) -> None:
        """Write blocks whose content is their number, out of the slots of that number."""
        for number in numbers:
            self.slot(number)[:] = bytes([number]) * BLOCK
            assert self.files.save(HostBlock(digest(number), number))
        self.disk.work(100)
        assert all(succeeded for _, succeeded in self.files.completed())

    def load(self, number: int) -> bool:
        """Read a block into slot 19. Whether it was there; it is right then."""
        block = HostBlock(digest(number), 19)
        self.files.load(block)
        self.files.wait(block)
        assert self.files.in_progress == [block]
        ((ended, succeeded),) = self.files.completed()
        assert ended is block
        assert not succeeded or bytes(self.slot(19)) == bytes([number]) * BLOCK
        return succeeded

    def known(self) -> list[int]:
        return [number for number in range(20) if digest(number) in self.files]

    def close(self) -> None:
        self.files.close()


def paths(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/*") if path.is_file())


def test_the_next_process_finds_what_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(1, 2, 3)
    store.close()
    again = Store(tmp_path)
    assert again.known() == [1, 2, 3]
    assert (len(again.files), again.files.num_bytes) == (3, 3 * FILE)
    assert again.load(2)
    again.close()


def test_another_model_finds_nothing_even_of_a_file_that_was_renamed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(1)
    store.close()
    (path,) = paths(tmp_path)
    (tmp_path / THEIRS.hex()).mkdir()
    (tmp_path / THEIRS.hex() / path.name).write_bytes(path.read_bytes())
    theirs = Store(tmp_path, identity=THEIRS)
    assert not theirs.load(1)
    theirs.disk.work(1)
    assert paths(tmp_path) == [path]
    theirs.close()


@pytest.mark.parametrize("place", [0, 40, 70, 100, HEADER_BYTES, FILE - 1])
def test_damage_is_seen_wherever_it_is(tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.save(1, 2)
    path = paths(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    assert not store.load(1)
    assert store.known() == [2]
    store.disk.work(100)
    assert not path.exists()
    assert [record.message for record in caplog.records] == [f"{path} is damaged, and deleted"]
    assert store.load(2)
    store.close()


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES, FILE - 1, FILE + 1])
def test_files_of_another_length_are_not_used(tmp_path: Path, size: int) -> None:
    store = Store(tmp_path)
    store.save(1)
    (path,) = paths(tmp_path)
    path.write_bytes((path.read_bytes() + b"x")[:size])
    assert not store.load(1)
    store.close()


def test_the_least_recently_used_files_go_first_and_in_the_next_process_too(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=3 * FILE)
    store.save(1, 2, 3)
    assert store.load(1)
    store.save(4)
    assert store.known() == [1, 3, 4]
    assert store.files.gone == [digest(2)]
    store.disk.work(100)
    assert len(paths(tmp_path)) == 3
    for age, number in enumerate([4, 1, 3]):
        os.utime(tmp_path / OURS.hex() / f"{digest(number).hex()}.kv", (1000 - age, 1000 - age))
    store.close()
    again = Store(tmp_path, limit=2 * FILE)
    assert again.known() == [1, 4]
    again.disk.work(100)
    assert len(paths(tmp_path)) == 2
    again.close()


def test_files_of_other_models_count_and_go(tmp_path: Path) -> None:
    theirs = Store(tmp_path, identity=THEIRS)
    theirs.save(1, 2)
    theirs.close()
    store = Store(tmp_path, limit=3 * FILE)
    store.save(5, 6)
    assert len(paths(tmp_path)) == 3
    assert store.known() == [5, 6]
    store.files.clear()
    store.disk.work(100)
    assert [path.parent.name for path in paths(tmp_path)] == [THEIRS.hex()]
    store.close()


def test_a_block_that_never_fits_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=FILE - 1)
    assert not store.files.save(HostBlock(digest(1), 1))
    store.close()
    assert paths(tmp_path) == []


def test_what_is_being_written_is_not_found_yet(tmp_path: Path) -> None:
    store = Store(tmp_path)
    block = HostBlock(digest(1), 1)
    assert store.files.save(block)
    assert not store.files.save(HostBlock(digest(1), 2)), "it has a file, or will have"
    assert store.known() == []
    assert store.files.in_progress == [block]
    store.disk.work(1)
    assert store.known() == []
    assert store.files.completed() == [(block, True)]
    assert store.known() == [1]
    store.close()


def test_clearing_while_a_file_is_written_leaves_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    block, again = HostBlock(digest(1), 1), HostBlock(digest(1), 2)
    store.slot(2)[:] = bytes([1]) * BLOCK
    assert store.files.save(block)
    store.files.clear()
    assert store.files.save(again), "the content may come back"
    store.disk.work(1)
    assert store.files.completed() == [(block, True)]
    assert store.known() == []
    store.disk.work(100)
    assert store.files.completed() == [(again, True)]
    assert store.load(1)
    store.close()


def test_other_things_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / OURS.hex()).mkdir()
    keep = [tmp_path / "a.kv", tmp_path / "notes" / f"{digest(1).hex()}.kv", tmp_path / OURS.hex() / "notes.txt"]
    for path in keep:
        path.write_text("mine")
    (tmp_path / OURS.hex() / f"{digest(1).hex()}.tmp").write_text("left by a crash")
    store = Store(tmp_path, limit=FILE)
    store.save(1)
    store.save(2)
    store.files.clear()
    store.close()
    assert [path for path in keep if path.exists()] == keep
    assert sorted(path.name for path in paths(tmp_path)) == sorted([keep[1].name, "notes.txt"])


def test_a_directory_that_disappears_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "cache")
    store.save(1)
    paths(tmp_path / "cache")[0].unlink()
    assert not store.load(1)
    assert store.known() == []
    os.unlink(tmp_path / "cache" / "octavo.lock")
    (tmp_path / "cache" / OURS.hex()).rmdir()
    (tmp_path / "cache").rmdir()
    store.save(2)
    assert store.load(2)
    assert not caplog.records
    store.close()


def test_a_write_that_fails_is_told_once_and_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    (tmp_path / OURS.hex()).write_text("a file where a folder should be")
    for number in (1, 2):
        assert store.files.save(HostBlock(digest(number), number))
    store.disk.work(100)
    assert [succeeded for _, succeeded in store.files.completed()] == [False, False]
    assert (store.known(), store.files.num_bytes) == ([], 0)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.message.startswith(f"A KV block cannot be written to {tmp_path}: ")
    (tmp_path / OURS.hex()).unlink()
    store.save(3)
    assert store.load(3)
    store.close()


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.save(1)
    for folder in (tmp_path / "cache", tmp_path / "cache" / OURS.hex()):
        assert folder.stat().st_mode & 0o077 == 0
    store.close()


def test_a_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ConfigError, match=f"--kv-offload-dir {tmp_path} is used by another process; give each its own"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_a_directory_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--kv-offload-dir .*/file/sub cannot be used: Not a directory"):
        Store(tmp_path / "file" / "sub")


def test_what_is_no_plain_file_is_neither_waited_for_nor_followed(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.save(1, 2)
    elsewhere = tmp_path / "elsewhere"
    fifo, link = sorted(paths(tmp_path / "cache"))
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    fifo.unlink()
    os.mkfifo(fifo)
    assert not store.load(1)
    assert not store.load(2)
    store.disk.work(100)
    assert list((tmp_path / "cache").glob("*/*")) == []
    assert elsewhere.stat().st_size == FILE
    store.close()


def test_a_lock_that_leads_elsewhere_harms_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "octavo.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match=r"--kv-offload-dir .*/cache cannot be used: "):
        Store(tmp_path / "cache")
    assert (tmp_path / "precious").read_text() == "content"
