"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.core.files import (
    create_atomically,
    create_temporary,
    is_temporary,
    remove_abandoned_files,
    write_atomically,
    write_text_atomically,
)


def test_a_text_takes_the_place_of_what_was_there(tmp_path: Path):
    (tmp_path / "run.json").write_text("before")
    write_text_atomically(tmp_path / "run.json", "after \u2013 it\n")
    assert (tmp_path / "run.json").read_bytes() == "after \u2013 it\n".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_what_was_there_stays_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "run.json").write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(tmp_path / "run.json", "half of it, then \ud800")
    with pytest.raises(OSError, match="No such file"):
        write_text_atomically(tmp_path / "gone" / "run.json", "after")
    assert (tmp_path / "run.json").read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    "write", [create_atomically, lambda file, data: write_atomically(file, [data])]
)
def test_a_file_in_new_folders_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], object]
):
    flushed: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        flushed.append("file" if is_temporary(name) else name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write(tmp_path / "a" / "b" / "c.json", b"{}")
    assert flushed == ["a", tmp_path.name, "file", "b"]
    write(tmp_path / "a" / "b" / "d.json", b"{}")
    assert flushed[4:] == ["file", "b"]


def test_a_temporary_file_is_another_where_it_was_taken_for_abandoned(tmp_path: Path):
    tried: list[str] = []

    def create(name: str) -> int:
        """Make a file as it is found, by another process, before it is locked."""
        tried.append(name)
        descriptor = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if len(tried) == 1:
            remove_abandoned_files(tmp_path)
        elif len(tried) == 2:
            with (tmp_path / name).open("rb") as other:  # which is about to remove it
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                others.append(os.dup(other.fileno()))
        return descriptor

    others: list[int] = []
    name, descriptor = create_temporary(create)
    assert tried[2:] == [name]
    remove_abandoned_files(tmp_path)
    assert (tmp_path / name).exists()
    for each in (descriptor, *others):
        os.close(each)
    remove_abandoned_files(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reason", [errno.EINVAL, errno.ENOSYS, errno.EACCES])
def test_a_disk_that_cannot_flush_folders_takes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
):
    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir():
            raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "a" / "b", [b"text"])
    assert create_atomically(tmp_path / "a" / "c", b"text")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"b", "c"}
    monkeypatch.setattr(os, "fsync", lambda _: os.close(-1))  # EBADF, as any other fault
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_atomically(tmp_path / "a" / "b", [b"text"])


def test_a_file_whose_making_was_answered_twice_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    link = Path.hardlink_to

    def linked(file: Path, target: Path):
        link(file, target)
        link(file, target)  # as where NFS repeats a request whose answer was lost

    monkeypatch.setattr(Path, "hardlink_to", linked)
    assert create_atomically(tmp_path / "a", b"first")
    assert not create_atomically(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("has_hard_links", [True, False])
def test_of_several_that_create_a_file_at_once_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_hard_links: bool
):
    writers = 4
    ready = threading.Barrier(writers)
    link = Path.hardlink_to

    def linked(file: Path, target: Path):
        ready.wait()
        if not has_hard_links:  # as exFAT, SMB and FUSE file systems say
            raise OSError(errno.EPERM, "Operation not permitted")
        link(file, target)

    monkeypatch.setattr(Path, "hardlink_to", linked)
    with ThreadPoolExecutor(writers) as pool:
        for number in range(50):
            file = tmp_path / str(number)
            texts = [str(writer).encode() for writer in range(writers)]
            wrote = list(pool.map(lambda text, file=file: create_atomically(file, text), texts))
            assert wrote.count(True) == 1
            assert file.read_bytes() == texts[wrote.index(True)]
    assert len(list(tmp_path.iterdir())) == 50
