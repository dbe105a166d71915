"""The disk cache: several processes, kills, full disks, objects that change."""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.core.errors import CorruptError, NotFoundError
from headrace.core.files import remove_abandoned_files, write_atomically
from headrace.data.storage import CachedStore, open_store
from headrace.data.storage.store import CacheableStore
from small_disks import mounted_disk

_DATA = random.Random(9).randbytes(2_000_000)
_BLOCK = 2**16
_LIMIT = 2**26


@pytest.fixture
def origin() -> CacheableStore:
    store = open_store(f"memory://{uuid4().hex}")
    store.put("data", _DATA)
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _cached(
    origin: CacheableStore, folder: Path, limit_bytes: int = _LIMIT, block_bytes: int = _BLOCK
) -> CachedStore:
    return CachedStore(origin, folder, limit_bytes, block_bytes=block_bytes)


def _blocks(folder: Path) -> list[Path]:
    return [file for file in folder.glob("??/*") if file.is_file()]


def _disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def warm(origin: CacheableStore, folder: Path) -> CacheableStore:
    cached = _cached(origin, folder)
    cached.get("data")
    cached.close()
    assert len(_blocks(folder)) == -(-len(_DATA) // _BLOCK)
    return origin


def test_a_second_job_reads_nothing_from_the_store(warm: CacheableStore, folder: Path) -> None:
    cached = _cached(warm, folder)
    assert bytes(cached.get_range("data", 100_000, 500_000)) == _DATA[100_000:600_000]
    assert cached.stats().miss_bytes == 0
    assert cached.stats().hit_bytes == 500_000


def test_a_relative_folder_is_the_same_for_who_moves_on(
    origin: CacheableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    cached = _cached(origin, Path("here"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    worker_s = pickle.loads(pickle.dumps(cached))
    worker_s.get("data")
    worker_s.close()
    assert _blocks(tmp_path / "here")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "stranger"])
def test_a_damaged_block_is_fetched_again(damage: str, warm: CacheableStore, folder: Path) -> None:
    generator = random.Random(3)
    for file in _blocks(folder):
        content = bytearray(file.read_bytes())
        if damage == "flip":
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        file.write_bytes(
            {
                "flip": bytes(content),
                "cut": bytes(content[: generator.randrange(len(content))]),
                "empty": b"",
                "stranger": b"something else altogether",
            }[damage]
        )
    cached = _cached(warm, folder)
    assert bytes(cached.get("data")) == _DATA
    cached.close()
    assert cached.stats().miss_bytes == len(_DATA)
    again = _cached(warm, folder)
    assert bytes(again.get("data")) == _DATA
    assert again.stats().miss_bytes == 0


def test_a_changed_object_never_mixes_with_what_it_was(warm: CacheableStore, folder: Path) -> None:
    cached = _cached(warm, folder)
    assert bytes(cached.get_range("data", 0, 10)) == _DATA[:10]
    changed = bytes(255 - byte for byte in _DATA)
    warm.put("data", changed)  # behind the cache's back
    for file in _blocks(folder)[::2]:
        file.unlink()
    assert bytes(cached.get_range("data", 0, len(_DATA))) == changed
    fresh = _cached(warm, folder)
    assert bytes(fresh.get("data")) == changed
    for at in range(0, len(_DATA) - 100, 99_991):
        assert bytes(fresh.get_range("data", at, 100)) == changed[at : at + 100]


def test_what_is_put_through_the_cache_is_what_is_read(warm: CacheableStore, folder: Path) -> None:
    cached = _cached(warm, folder)
    cached.get("data")
    cached.put("data", b"new")
    assert bytes(cached.get("data")) == b"new"
    with pytest.raises(CorruptError, match=r"data \(bytes 1-10\)"):
        cached.get_range("data", 1, 10)
    cached.delete("data")
    with pytest.raises(NotFoundError):
        cached.get("data")


def test_what_is_forgotten_is_asked_of_the_store(warm: CacheableStore, folder: Path) -> None:
    cached = _cached(warm, folder)
    cached.forget("data", _BLOCK + 5, 10)
    cached.get("data")
    assert cached.stats().miss_bytes == _BLOCK


def test_what_is_forgotten_before_it_was_written_does_not_come_back(
    origin: CacheableStore, folder: Path
) -> None:
    cached = CachedStore(origin, folder, _LIMIT, block_bytes=2**21)  # takes a while to write
    for _ in range(8):
        cached.get_range("data", 0, len(_DATA))
        cached.forget("data", 0, len(_DATA))
        cached.close()
        assert _blocks(folder) == []


def test_the_limit_holds_and_blocks_of_recent_use_stay(
    origin: CacheableStore, folder: Path
) -> None:
    limit_bytes = 40 * _BLOCK
    for number in range(6):
        origin.put(f"object/{number}", _DATA[: 10 * _BLOCK])
    cached = _cached(origin, folder, limit_bytes)
    for number in range(6):
        cached.get(f"object/{number}")
        cached.close()
        assert _disk_bytes(folder) <= limit_bytes
        for age, file in enumerate(sorted(_blocks(folder), key=lambda file: file.stat().st_mtime)):
            os.utime(file, (age, age))  # as if much time had passed
    last = _cached(origin, folder, limit_bytes)
    last.get("object/5")
    assert last.stats().miss_bytes == 0
    last.get("object/0")
    assert last.stats().miss_bytes == 10 * _BLOCK


def test_a_limit_too_small_for_a_block_caches_nothing(origin: CacheableStore, folder: Path) -> None:
    cached = _cached(origin, folder, 1000)
    assert bytes(cached.get("data")) == _DATA
    cached.close()
    assert _blocks(folder) == []


def _read_at_random(
    origin: CacheableStore, folder: Path, limit_bytes: int, seed: int, block_bytes: int = _BLOCK
) -> None:
    cached = _cached(origin, folder, limit_bytes, block_bytes)
    generator = random.Random(seed)
    for _ in range(200):
        start = generator.randrange(len(_DATA) - 100_000)
        length = generator.randrange(1, 100_000)
        assert bytes(cached.get_range("data", start, length)) == _DATA[start : start + length]
    cached.close()


def test_several_processes_share_one_folder(origin: CacheableStore, folder: Path) -> None:
    limit_bytes = len(_DATA) // 2  # so that they evict one another's blocks all the time
    context = multiprocessing.get_context("fork")
    processes = [
        # Blocks that the others are about to write are not counted by who evicts: small ones.
        context.Process(target=_read_at_random, args=(origin, folder, limit_bytes, seed, 2**13))
        for seed in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert _disk_bytes(folder) <= limit_bytes
    assert _blocks(folder)


def _write_for_ever(origin: CacheableStore, folder: Path) -> None:
    while True:
        cached = _cached(origin, folder, len(_DATA) // 2)
        cached.get("data")
        cached.close()


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(
    origin: CacheableStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, children = os.pwrite, []

    def written_amid_a_fork(descriptor: int, data: bytes, at: int) -> int:
        """Write the bytes taken so far, with their file locked, as something else forks."""
        if not children:
            context = multiprocessing.get_context("fork")
            children.append(context.Process(target=signal.pause, daemon=True))
            children[0].start()
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", written_amid_a_fork)
    mine, other = _cached(origin, folder), _cached(origin, folder)
    mine.get_range("data", 0, _BLOCK)
    mine.close()
    (child,) = children
    assert child.is_alive()
    other.get_range("data", _BLOCK, _BLOCK)
    other.close()
    assert (mine.stats().written_bytes, other.stats().written_bytes) == (_BLOCK, _BLOCK)
    child.kill()
    child.join()


def test_a_file_that_is_being_written_is_not_taken_for_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, first = fcntl.flock, [True]

    def cleared_before_it_is_locked(descriptor: int, how: int) -> None:
        if first.pop() if first else False:
            remove_abandoned_files(tmp_path)
        locks(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", cleared_before_it_is_locked)
    write_atomically(tmp_path / "block", [b"content"])
    assert (tmp_path / "block").read_bytes() == b"content"
    assert [file.name for file in tmp_path.iterdir()] == ["block"]


def test_kill_9_leaves_no_lock_no_litter_and_no_bad_block(
    origin: CacheableStore, folder: Path
) -> None:
    context = multiprocessing.get_context("fork")
    generator = random.Random(11)
    for _ in range(8):
        process = context.Process(target=_write_for_ever, args=(origin, folder))
        process.start()
        while not _blocks(folder):
            assert process.is_alive()
        process.join(generator.uniform(0.0, 0.05))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        _read_at_random(origin, folder, len(_DATA) // 2, seed=1)
        assert list((folder / "writing").iterdir()) == []
    assert _disk_bytes(folder) <= len(_DATA) // 2


def test_a_folder_removed_meanwhile_is_made_again(warm: CacheableStore, folder: Path) -> None:
    cached = _cached(warm, folder)
    cached.get("data")
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()
    assert bytes(cached.get("data")) == _DATA
    cached.close()
    assert bytes(_cached(warm, folder).get("data")) == _DATA


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "512k") as disk:
        yield disk


def test_a_full_disk_costs_one_warning(
    origin: CacheableStore, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cached = _cached(origin, small_disk / "cache")
    for _ in range(3):
        assert bytes(cached.get("data")) == _DATA
        cached.close()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "No space left on device" in record.getMessage()
    assert list((small_disk / "cache/writing").iterdir()) == []


def test_a_read_only_disk_costs_one_warning_and_still_serves(
    origin: CacheableStore, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = _cached(origin, small_disk / "cache")
    before.get_range("data", 0, _BLOCK)
    before.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    cached = _cached(origin, small_disk / "cache")
    for _ in range(3):
        assert bytes(cached.get("data")) == _DATA
        cached.close()
    assert cached.stats().hit_bytes == 3 * _BLOCK
    (record,) = caplog.records
    assert "Read-only file system" in record.getMessage()
