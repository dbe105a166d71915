"""Odd files among checkpoints, and folders that are gone for a while: the sync goes on."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.core.files import open_regular_file
from headrace.jobs.sync.remote_copy import FencedError, RemoteCopy
from headrace.jobs.sync.sync_process import FolderSync, restore, sync_until
from jobs import attempts_of
from jobs_here import run_job
from synced_folder import SyncedFolder

NOBODY = 65534


class Copied(SyncedFolder):
    """One whose copy is restored to see what is there."""

    def __init__(self, place: Path, seen_as: Sequence[str] = ()) -> None:
        super().__init__(place, seen_as)
        self._there = place / "there"

    def found(self) -> set[str]:
        shutil.rmtree(self._there, ignore_errors=True)
        restore(RemoteCopy(self.url, print), self._there, print)
        return {
            path.relative_to(self._there).as_posix()
            for path in self._there.rglob("*")
            if path.is_symlink() or path.is_file()
        }


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def a_deep_folder(path: Path) -> None:
    before = Path.cwd()
    path.mkdir()
    try:
        for _ in range(1100):
            os.chdir(path)
            path = Path("d")
            path.mkdir()
        Path("d/file").touch()
    finally:
        os.chdir(before)


def a_folder_of_a_name(name: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        folder = os.fsencode(path.parent) + b"/" + name
        os.mkdir(folder)  # noqa: PTH102 - bytes
        with open(folder + b"/1.pt", "wb"):  # noqa: PTH123 - bytes
            pass

    return make


ODD = {
    "named pipe": (os.mkfifo, "neither file nor folder", False),
    "socket": (a_socket, "neither file nor folder", False),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "", True),
    "link to itself": (lambda path: path.symlink_to(path.name), "", True),
    "link out": (lambda path: path.symlink_to("/etc"), "leads out of the folder", False),
    "name of other bytes": (
        lambda path: Path(os.fsdecode(os.fsencode(path) + b"\xff")).touch(), "no store takes", False
    ),
    "folder of other bytes": (a_folder_of_a_name(b"a\xff"), "no store takes", False),
    "name of two lines": (lambda path: path.with_name("a\nb").touch(), "", True),
    "longest name": (lambda path: path.with_name("n" * 255).touch(), "", True),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_stops_nothing_and_is_reported(
    copied: Copied, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is limited
    make, message, is_kept = ODD[odd]
    make(copied.folder / "odd")
    (copied.folder / "1.pt").write_text("one")
    copied.passes(0.0, 2.0, 6.0)
    (copied.folder / "2.pt").write_text("two")
    copied.passes(0.0, 2.0)
    found = copied.found()
    assert {"1.pt", "2.pt"} <= found
    assert len(found) == 2 + is_kept
    assert [line for line in copied.messages if message in line] or is_kept
    assert len(copied.messages) == (not is_kept)


def test_a_file_that_no_store_can_hold_is_a_problem_to_the_end(copied: Copied) -> None:
    (copied.folder / os.fsdecode(b"a\xff.pt")).write_text("lost")
    os.mkfifo(copied.folder / os.fsdecode(b"pipe\xff"))
    copied.passes(0.0, 2.0)
    problems = copied.sync.one_pass(at_the_end=True).problems
    assert problems == {r"'a\udcff.pt'": "has a name that no store takes"}


def test_absolute_links_within_the_folder_are_restored_wherever_it_lies(tmp_path: Path) -> None:
    copied = Copied(tmp_path, seen_as=["/opt/ml/checkpoints"])
    (tmp_path / "alias").symlink_to(copied.folder)
    (copied.folder / "step-5").mkdir()
    (copied.folder / "step-5" / "model.pt").write_text("five")
    targets = {
        "last": copied.folder / "step-5", "step-5/best": copied.folder / "step-5" / "model.pt",
        "aliased": tmp_path / "alias" / "step-5", "seen": "/opt/ml/checkpoints/step-5",
        "chained": copied.folder / "last",
    }  # fmt: skip
    for name, target in targets.items():
        (copied.folder / name).symlink_to(target)
    (copied.folder / "out").symlink_to("/opt/ml/checkpoints-of-others/step-5")
    copied.passes(0.0, 2.0, 6.0)
    assert copied.found() == {"step-5/model.pt", *targets}
    there = tmp_path / "there"
    assert all("five" in (there / name / "model.pt").read_text() for name in ("last", "chained"))
    links = {name: os.readlink(there / name) for name in targets}  # noqa: PTH115 - texts
    assert links == {
        "last": "step-5", "step-5/best": "model.pt", "aliased": "step-5", "seen": "step-5",
        "chained": "last",
    }  # fmt: skip


def test_folders_may_be_deeper_than_calls_can_nest(copied: Copied) -> None:
    try:
        a_deep_folder(copied.folder / "odd")
        (copied.folder / "1.pt").write_text("one")
        copied.passes(0.0, 2.0, 6.0)
        there = copied.folder.with_name("there")
        restore(RemoteCopy(copied.url, print), there, print)
        assert (there / "1.pt").exists()
        assert (there / "odd" / "d").exists()
    finally:  # what removes folders in Python nests calls, too
        subprocess.run(["rm", "-rf", copied.folder, there], check=True)


@pytest.fixture
def unprivileged() -> Iterator[Copied]:
    """A synced folder, by a user whom permissions bind."""
    is_root = os.geteuid() == 0
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield Copied(place)
    finally:
        if is_root:
            os.seteuid(0)
        for folder in place.rglob("*"):
            if folder.is_dir():
                folder.chmod(0o700)
        shutil.rmtree(place)


def test_an_unreadable_file_is_told_and_copied_once_it_can_be_read(unprivileged: Copied) -> None:
    copied = unprivileged
    (copied.folder / "0.pt").write_text("zero")
    (copied.folder / "0.pt").chmod(0)
    (copied.folder / "1.pt").write_text("one")
    copied.passes(0.0, 2.0, 2.0)
    assert copied.found() == {"1.pt"}
    assert [line.partition(": ")[2] for line in copied.messages] == [
        "cannot be read: Permission denied; it is kept once it can be"
    ]
    assert copied.sync.one_pass(at_the_end=True).problems == {
        "0.pt": "cannot be read: Permission denied"
    }
    (copied.folder / "0.pt").chmod(0o600)
    copied.passes(2.0, 2.0)
    assert copied.found() == {"0.pt", "1.pt"}


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_what_an_unreadable_folder_holds_is_not_taken_for_removed(
    unprivileged: Copied, mode: int
) -> None:
    copied = unprivileged
    (copied.folder / "best").mkdir()
    (copied.folder / "best" / "0.pt").write_text("zero")
    copied.passes(0.0, 6.0)
    assert copied.found() == {"best/0.pt"}
    (copied.folder / "best").chmod(mode)
    (copied.folder / "1.pt").write_text("one")
    copied.passes(0.0, 2.0, 100.0, 100.0)
    assert copied.sync.one_pass(at_the_end=True).problems
    assert copied.found() == {"best/0.pt", "1.pt"}
    (copied.folder / "best").chmod(0o700)
    shutil.rmtree(copied.folder / "best")
    copied.passes(0.0, 100.0)
    assert copied.found() == {"1.pt"}


@pytest.mark.parametrize("becomes", ["nothing", "an empty folder", "a file", "a link to nothing"])
def test_a_folder_that_is_gone_for_a_while_loses_nothing_and_is_synced_again(
    copied: Copied, becomes: str
) -> None:
    (copied.folder / "1.pt").write_text("one")
    copied.passes(0.0, 2.0)
    away = copied.folder.with_name("away")
    copied.folder.rename(away)
    steps = iter(range(10))

    def is_over(_: float) -> bool:
        """What happens between passes; the folder is back from the fourth one on."""
        copied.now_s += 20.0
        step = next(steps)
        if step == 1 and becomes == "a file":
            copied.folder.touch()
        elif step == 1 and becomes == "a link to nothing":
            copied.folder.symlink_to("nothing")
        elif step == 4:
            with suppress(FileNotFoundError):
                copied.folder.unlink()
            if becomes == "an empty folder":
                copied.folder.mkdir()
            else:
                away.rename(copied.folder)
            (copied.folder / "2.pt").write_text("two")
        return step == 9

    sync_until(copied.sync, is_over, 0.0, copied.messages.append)
    assert copied.found() == {"1.pt", "2.pt"}
    assert "is gone" in copied.messages[0]
    assert copied.messages[1:] == ["checkpoints are kept again"]


def test_another_process_that_has_taken_over_still_ends_the_sync(copied: Copied) -> None:
    FolderSync(copied.remote, copied.folder, "host", (), print).begin()
    (copied.folder / "1.pt").write_text("one")
    copied.passes(0.0)
    copied.now_s += 2.0
    with pytest.raises(FencedError):
        sync_until(copied.sync, lambda _: False, 0.0, print)


def test_files_that_become_something_else_at_any_moment_stop_nothing(copied: Copied) -> None:
    place = copied.folder / "changing"
    turns = (
        lambda: place.write_bytes(b"PK\x03\x04" + bytes(1000)), place.unlink,
        lambda: os.mkfifo(place), place.unlink,
        place.mkdir, lambda: (place / "1.pt").write_text("x"), lambda: shutil.rmtree(place),
        lambda: place.symlink_to("1.pt"), place.unlink,
        lambda: place.write_text("y"), lambda: place.chmod(0), place.unlink,
    )  # fmt: skip
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            for turn in turns:
                turn()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for number in range(100):
            (copied.folder / f"{number // 20}.pt").write_text("whole")
            copied.passes(2.0, 2.0)
    finally:
        is_over.set()
        changing.join()
    assert {f"{number}.pt" for number in range(5)} <= copied.found()


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        a_socket,
        Path.mkdir,
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/etc/hostname"),
    ],
)
def test_what_is_no_file_is_opened_without_waiting(
    tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "odd")
    with pytest.raises(FileNotFoundError):
        open_regular_file(tmp_path / "odd")


ENDS = {
    "nothing": "",
    "an open file": (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
        '\'import sys, time; file = open(sys.argv[1], "w"); file.write("half"); file.flush(); '
        "open(sys.argv[2], \"w\"); time.sleep(8)', str(folder / '2.pt'), 'open'], "
        "start_new_session=True)\n"
        "while not os.path.exists('open'): pass"
    ),
    "no folder": "import shutil; shutil.rmtree(folder)",
}


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("nothing", 0, ""),
        ("an open file", 1, "2.pt a process has it open for writing"),
        ("no folder", 1, "checkpoints is gone. What was kept of it stays at "),
    ],
)
def test_a_job_whose_checkpoints_are_not_all_copied_fails_and_says_which(
    tmp_path: Path, end: str, code: int, message: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib\nfolder = pathlib.Path(os.environ['HEADRACE_CHECKPOINT_DIR'])\n"
        f"(folder / '1.pt').write_text('one')\n{ENDS[end]}\n"
    )
    flags = ["--name", "a", "--profile", "off", "--checkpoint-uri", str(tmp_path / "url")]
    ended = run_job(tmp_path, *flags, "train.py")
    assert ended.returncode == code, ended.stderr
    assert message in ended.stderr
    assert ("not all checkpoints are at" in ended.stderr) == bool(code)
    assert [attempt["exit_code"] for attempt in attempts_of(tmp_path / "runs" / "a")] == [code]
