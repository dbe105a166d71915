"""A script that is run directly writes to a terminal where the launcher does, and else to none."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jobs import DEADLINE_S, clean_environment, eventually, headrace, run

SCRIPT = """
import os, pathlib, signal, sys
print([each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)])
if sys.stdout.isatty():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH, signal.SIGHUP])
    print(os.get_terminal_size(1).columns, os.get_terminal_size(2).columns)
    while os.get_terminal_size(1).columns == 93:
        signal.sigwait([signal.SIGWINCH])
    # In one piece: what comes to the other stream may be shown between two.
    sys.stdout.write(f"now {os.get_terminal_size(1).columns}\\n")
sys.stderr.write("half a line")
if sys.stdout.isatty():
    signal.sigwait([signal.SIGHUP])
    pathlib.Path("gone").touch()
sys.exit(7)
"""


class Screen:
    """A terminal of 93 columns, whose both ends are ours."""

    def __init__(self) -> None:
        self.keyboard, self.screen = os.openpty()
        self._ends = [self.keyboard, self.screen]
        self.resize(93)
        self.output = b""

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, size)

    def shows(self, words: bytes) -> bool:
        os.set_blocking(self.keyboard, False)
        with suppress(BlockingIOError):
            self.output += os.read(self.keyboard, 65_536)
        return words in self.output

    def close(self) -> None:
        """Take the terminal away; once more does nothing."""
        ends, self._ends = self._ends, []
        for end in ends:
            os.close(end)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    made.close()


def test_a_script_sees_the_terminal_its_size_its_changes_and_its_end(
    tmp_path: Path, screen: Screen
):
    (tmp_path / "train.py").write_text(SCRIPT)
    # The first terminal that the leader of a session opens becomes the session's.
    inside = " ".join(headrace("run", "--run-dir", "r", "--profile", "off", "train.py"))
    terminal = os.ttyname(screen.screen)
    job = subprocess.Popen(
        ["sh", "-c", f"exec {inside} < {terminal} > {terminal} 2>&1"],
        cwd=tmp_path, start_new_session=True, env=clean_environment(),
        # Under nohup it is ignored, and stays so.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    try:
        eventually(lambda: screen.shows(b"93 93\r\n"), "its size")
        screen.resize(71)
        eventually(lambda: screen.shows(b"now 71\r\n"), "its new size")
        eventually(lambda: screen.shows(b"half a line"), "what is no whole line")
        screen.close()  # the launcher leads the session, and the kernel signals it alone
        eventually((tmp_path / "gone").exists, "SIGHUP at the script", 60.0)
        assert job.wait(timeout=DEADLINE_S) == 7
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    assert b"[True, True, True]\r\n" in screen.output
    logs = tmp_path / "r" / "logs" / "attempt-1"
    assert (logs / "rank-0.stdout").read_text() == "[True, True, True]\n93 93\nnow 71\n"
    assert (logs / "rank-0.stderr").read_text() == "half a line"


def test_where_only_one_stream_is_a_terminal_only_that_is_one(tmp_path: Path, screen: Screen):
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = subprocess.run(
        headrace("run", "--run-dir", "r", "--profile", "off", "train.py"),
        cwd=tmp_path, env=clean_environment(), stdin=subprocess.DEVNULL, check=False,
        stdout=subprocess.PIPE, stderr=screen.screen, timeout=DEADLINE_S,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (7, b"[False, False, True]\n")
    assert screen.shows(b"half a line")


def test_without_a_terminal_there_is_none(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = run(tmp_path, "--profile", "off", "train.py")
    assert (ended.returncode, ended.stdout) == (7, "[False, False, False]\n")
