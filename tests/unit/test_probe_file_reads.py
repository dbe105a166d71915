"""Reads of files are timed while a batch is made, and nothing else about files is different."""

from __future__ import annotations

import builtins
import bz2
import inspect
import io
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.observe.probe.file_reads import FileReads

TEXT = "eins\r\nzwei\nd\u00fcrr\n"
OPEN, READ, FROMFILE = io.open, os.read, np.fromfile


class Work:
    """Counts what is timed, of a process that makes batches at times."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_mine = True
        self.reads = FileReads(self._timed, lambda: self.is_mine)

    def _timed(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return call(*args, **kwargs)

    @contextmanager
    def batch(self) -> Iterator[None]:
        self.reads.begin()
        try:
            yield
        finally:
            self.reads.end()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "a"
    found.write_bytes(TEXT.encode())
    return found


def pread(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.pread(descriptor, 100, 0)
    finally:
        os.close(descriptor)


def zipped(file: Path) -> bytes:
    with zipfile.ZipFile(file.parent / "a.zip", "w") as archive:
        archive.write(file, "a")
    with zipfile.ZipFile(file.parent / "a.zip") as archive:
        return archive.read("a")


READS: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda file: open(file, "rb").read(),  # noqa: SIM115, PTH123 - as people write it
    "parts": lambda file: [file.open("rb").read(3), file.open("rb").readline()],
    "into": lambda file: file.open("rb").readinto(bytearray(100)),
    "text": lambda file: file.read_text(encoding="utf-8"),
    "unbuffered": lambda file: file.open("rb", buffering=0).read(),
    "more": lambda file: file.open("rb", buffering=1 << 20).read(),
    "path": lambda file: file.read_bytes(),
    "lines": lambda file: list(file.open(encoding="utf-8", newline="")),
    "wrong": lambda file: file.read_text(encoding="ascii", errors="replace"),
    "descriptor": lambda file: OPEN(os.open(file, os.O_RDONLY), "rb").read(),
    "system": pread,
    "numpy": lambda file: np.fromfile(file, dtype=np.uint8).tolist(),
    "zip": zipped,
}


@pytest.mark.parametrize("way", READS)
def test_reads_are_timed_and_bring_what_they_would(file: Path, way: str):
    work, expected = Work(), READS[way](file)
    with work.batch():
        found = READS[way](file)
    assert found == expected
    assert (work.calls > 0) == (way != "descriptor")  # `OPEN` was looked up before
    calls = work.calls
    assert READS[way](file) == expected
    assert work.calls == calls


def test_arrays_are_read_as_ever(tmp_path: Path):
    work, array = Work(), np.arange(1000.0).reshape(10, 100)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", one=array)
    with work.batch():
        assert np.array_equal(np.load(tmp_path / "a.npy"), array)
        assert work.calls > 1  # its header, and the numbers
        assert np.array_equal(np.load(tmp_path / "b.npz")["one"], array)
        assert np.array_equal(np.load(tmp_path / "a.npy", mmap_mode="r"), array)


MODES: tuple[dict[str, Any], ...] = (
    {}, {"mode": "rb"}, {"mode": "rt", "encoding": "utf-8"}, {"newline": ""}, {"mode": "r+"},
    {"mode": "r", "errors": "replace", "encoding": "ascii"}, {"mode": "rb", "buffering": 0},
    {"mode": "rb", "buffering": 7}, {"buffering": 1}, {"buffering": 9},
)  # fmt: skip


@pytest.mark.parametrize("flags", MODES)
def test_a_file_reports_of_itself_what_it_would(file: Path, flags: dict[str, Any]):
    def described(found: Any) -> list[Any]:
        with found:
            names = ("mode", "name", "encoding", "errors", "newlines", "line_buffering")
            layers = [found, getattr(found, "buffer", found), getattr(found, "raw", found)]
            return [
                [type(each).__name__ for each in layers], repr(found), found.fileno() > 2,
                found.seekable(), found.writable(), found.read(), found.tell(),
                [getattr(each, name, None) for each in layers for name in names],
            ]  # fmt: skip

    work, expected = Work(), described(OPEN(file, **flags))
    with work.batch():
        found = described(open(file, **flags))  # noqa: SIM115, PTH123
        assert np.fromfile(file.open("rb"), dtype=np.uint8).tobytes() == TEXT.encode()
    assert found == expected


WRONG: tuple[Callable[[Path], Any], ...] = (
    lambda file: open(file.parent / "none"),  # noqa: SIM115, PTH123
    lambda file: open(file.parent),  # noqa: SIM115, PTH123
    lambda file: open(file, "rx"),  # noqa: SIM115, PTH123, PLW1501
    lambda file: open(file, "rb", encoding="utf-8"),  # noqa: SIM115, PTH123
    lambda file: open(file, encoding="no-such-encoding"),  # noqa: SIM115, PTH123
    lambda file: open(file, newline="x"),  # noqa: SIM115, PTH123
    lambda _: open(999_999),  # noqa: SIM115
    lambda file: open(file, "rb", closefd=False),  # noqa: SIM115
)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_reported_as_ever(file: Path, wrong: Callable[[Path], Any]):
    def error_text() -> str:
        with pytest.raises((OSError, ValueError, LookupError)) as caught:
            wrong(file)
        return f"{caught.value!r} {getattr(caught.value, 'filename', None)!r}"

    work, expected = Work(), error_text()
    with work.batch():
        assert error_text() == expected


def test_only_the_thread_that_makes_a_batch_is_timed_and_only_meanwhile(file: Path):
    work = Work()
    with work.batch():
        assert open is io.open is not OPEN
        work.is_mine = False
        assert type(file.open("rb").raw) is io.FileIO
    assert open is io.open is OPEN
    assert pickle.loads(pickle.dumps(open)) is OPEN


def test_who_keeps_what_stands_there_meanwhile_has_a_function_as_before(file: Path):
    work = Work()
    with work.batch():

        class Keeps:
            open = open
            read, fromfile = os.read, np.fromfile

        kept = Keeps()
        assert kept.open(file, "rb").read() == TEXT.encode()
    assert kept.open(file, "rb").read() == TEXT.encode()  # no method: no self before the file
    kept_there = (Keeps.open, Keeps.read, Keeps.fromfile)
    assert pickle.loads(pickle.dumps(kept_there)) == (OPEN, os.read, np.fromfile)
    with work.batch():
        assert pickle.loads(pickle.dumps(kept_there)) == (OPEN, READ, FROMFILE)
    assert inspect.signature(Keeps.open) == inspect.signature(OPEN)
    assert Keeps.open.__doc__ == OPEN.__doc__


def test_what_was_there_before_is_pickled_and_compared_as_ever():
    work, before = Work(), (OPEN, FROMFILE, READ, len, [].append)
    expected = pickle.dumps(before)
    with work.batch():
        sent = pickle.dumps(before)
        assert {OPEN: 1, FROMFILE: 2}[open] == 1
        assert {open, np.fromfile} == {OPEN, FROMFILE}
        assert open != len
    assert pickle.loads(sent)[:4] == before[:4]
    assert b"headrace" not in sent
    assert pickle.dumps(before) == expected
    with work.batch():
        kept = open
    assert b"headrace" not in pickle.dumps(kept)
    assert pickle.loads(pickle.dumps(kept)) is OPEN


def test_modules_that_keep_open_by_another_name_are_timed(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"some")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a", "a")
    (tmp_path / "a.bz2").write_bytes(bz2.compress(b"some"))
    work = Work()
    with work.batch():
        with tarfile.open(tmp_path / "a.tar") as tar:
            member = tar.extractfile("a")
            assert member is not None
            assert member.read() == b"some"
        assert work.calls > 0
        work.calls = 0
        with bz2.open(tmp_path / "a.bz2") as unpacked:
            assert unpacked.read() == b"some"
        assert work.calls > 0
    assert tarfile.bltn_open is OPEN


def test_a_script_keeps_what_it_had_in_their_place(monkeypatch: pytest.MonkeyPatch, file: Path):
    def own(*_: Any) -> str:
        return "own"

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", own)
    with Work().batch():
        assert open(file) == file.open() == "own"  # noqa: SIM115, PTH123


def test_where_it_is_asked_for_the_scripts_line_is_warned_of(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "from headrace.observe.probe.file_reads import FileReads\n"
        "reads = FileReads(lambda call, *args: call(*args), lambda: True)\n"
        "reads.begin()\n"
        "open(__file__).read()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", str(script)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line for line in ended.stderr.splitlines() if "EncodingWarning" in line] == [
        f"{script}:4: EncodingWarning: 'encoding' argument not specified"
    ]


def test_a_script_keeps_the_open_that_it_made(monkeypatch: pytest.MonkeyPatch):
    def own(*_: Any) -> str:
        return "own"

    work = Work()
    monkeypatch.setattr(builtins, "open", own)
    with work.batch():
        assert builtins.open is own
        assert io.open is not OPEN
        builtins.open = io.open
    assert builtins.open is OPEN
    with work.batch():
        builtins.open = own  # type: ignore[assignment]
    assert builtins.open is own
