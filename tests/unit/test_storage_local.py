"""The store of a local folder: links, full disks, half-written files."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import DeniedError, NoSpaceError, NotFoundError
from headrace.core.files import remove_abandoned_files, temporary_name
from headrace.data.storage import open_store
from small_disks import mounted_disk


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    (tmp_path / "data/a").mkdir(parents=True)
    (tmp_path / "data/a/x").write_bytes(b"1")
    (tmp_path / "data/a/loop").symlink_to(tmp_path / "data")
    (tmp_path / "data/b").symlink_to(tmp_path / "data/a")
    (tmp_path / "data/broken").symlink_to(tmp_path / "nothing")
    store = open_store(str(tmp_path / "data"))
    assert [info.path for info in store.list()] == ["a/x", "b/x"]
    assert bytes(store.get("b/x")) == b"1"


def test_a_folder_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    store = open_store(str(tmp_path))
    for read in (store.head, store.get):
        with pytest.raises(NotFoundError, match=str(tmp_path / "folder")):
            read("folder")


def test_a_file_that_is_being_written_is_no_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))

    def pieces() -> Iterator[bytes]:
        yield b"half"
        assert len(list(tmp_path.iterdir())) == 1
        assert list(store.list()) == []

    store.put("x", pieces())
    assert [info.path for info in store.list()] == ["x"]
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead, young, living = (tmp_path / temporary_name() for _ in range(3))
    for file in (dead, young, living):
        file.write_bytes(b"half")
    for file in (dead, living):
        os.utime(file, (0, 0))
    with living.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        open_store(str(tmp_path)).put("x", b"1")
        assert not dead.exists()
        assert young.exists()
        remove_abandoned_files(tmp_path)
        assert not young.exists()
        assert living.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path, "256k") as disk:
        yield disk


def test_a_full_disk_keeps_what_was_there(small_disk: Path) -> None:
    store = open_store(str(small_disk))
    store.put("x", b"before")
    for name in ("x", "y"):
        with pytest.raises(NoSpaceError, match=f"{small_disk}/{name}: No space left"):
            store.put(name, b"z" * 2**20)
    assert bytes(store.get("x")) == b"before"
    assert [file.name for file in small_disk.iterdir()] == ["x"]


def test_a_read_only_disk_is_reported(small_disk: Path) -> None:
    store = open_store(str(small_disk))
    store.put("x", b"before")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for change in (lambda: store.put("y", b""), lambda: store.delete("x")):
        with pytest.raises(DeniedError, match="Read-only"):
            change()
    assert bytes(store.get("x")) == b"before"


def test_folders_that_are_written_to_one_after_the_other_take_no_more_memory(tmp_path: Path):
    store = open_store(str(tmp_path))

    def kept() -> int:
        gc.collect()
        paths = [each for each in gc.get_objects() if isinstance(each, Path)]
        return sum(str(tmp_path) in str(each) for each in paths)

    for step in range(300):  # as checkpoints are
        store.put(f"step-{step}/model", b"")
    before = kept()
    for step in range(300, 1200):
        store.put(f"step-{step}/model", b"")
    assert kept() <= before + 300
