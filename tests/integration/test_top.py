"""`headrace top` on real runs: live, over, killed, not there; in a terminal and in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.top import top
from headrace.core.errors import RecordsError, UsageError
from headrace.core.process.sidecar import request_line
from headrace.records.live_switch import create_live_switch
from headrace.records.reader import open_records
from headrace.records.run_folder import RunFolder, open_run_folder
from headrace.report.page import write_report
from headrace.report.top.run_watcher import RunWatcher
from headrace.report.top.state import TimeWindow, TopState
from jobs import DEADLINE_S, clean_environment, descendants, eventually, run_here, started
from pages import Page, check_alone

SCRIPT = Path(__file__).parents[1] / "scripts" / "probed" / "until_file.py"
TOP = [sys.executable, "-m", "headrace.cli.main", "top"]
START_S = 180.0  # torch is imported, perhaps while every core has other work
STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ALONE_IN, ALONE_OUT = "\x1b[?1049h", "\x1b[?1049l"  # a screen of its own, as full-screen tools have
CURSOR_ON = "\x1b[?25h"


class Terminal:
    """A pseudo-terminal of 80 columns and 24 lines, with `headrace top` in it."""

    def __init__(self, *arguments: str) -> None:
        self._master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.after: list[Any] | None = None  # once the view has ended
        self.output = ""
        environment = clean_environment(TERM="xterm-256color")
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*TOP, *arguments],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )  # fmt: skip

    def text(self) -> str:
        """All that was written, without what steers the terminal."""
        while self.after is None and select.select([self._master], [], [], 0)[0]:
            self.output += os.read(self._master, 65_536).decode(errors="replace")
        return STEERING.sub("", self.output)

    def shows(self, words: str) -> None:
        eventually(lambda: words in self.text(), f"{words!r} in the terminal")

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def ended(self) -> int:
        """Wait for the end, while what is written is read, and return the exit code."""
        eventually(lambda: self.text() and self.process.poll() is not None, "the view's end")
        self._close_slave()
        with suppress(OSError):  # the terminal's end, after all that was written
            while read := os.read(self._master, 65_536):
                self.output += read.decode(errors="replace")
        return self.process.returncode

    def _close_slave(self) -> None:
        """Close this end, without which the other may get the last lines only later."""
        if self.after is None:
            self.after = termios.tcgetattr(self.slave)
            os.close(self.slave)

    def is_as_before(self) -> bool:
        return (
            self.after == self.before
            and self.output.rindex(ALONE_OUT) > self.output.rindex(ALONE_IN)
            and CURSOR_ON in self.output
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._close_slave()
        os.close(self._master)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    opened = Terminal(*arguments)
    try:
        yield opened
    finally:
        opened.close()


def once(run_folder: Path) -> str:
    ended = run_here(run_folder.parent, "top", str(run_folder), COLUMNS="80")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@dataclass
class LiveRun:
    """A run that goes on until its file `stop` is there, and the frame of its first moment."""

    job: subprocess.Popen[bytes]
    folder: Path
    early: str

    @property
    def path(self) -> Path:
        return self.folder / "runs" / "base"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("top")
    words = ("--name", "base", str(SCRIPT), str(folder / "stop"), str(folder / "steps"))
    with started(folder, *words) as job:
        path = folder / "runs" / "base"
        eventually((path / "run.json").exists, "the run's folder", START_S)
        early = once(path)
        eventually((folder / "steps").exists, "the first step", START_S)
        eventually(lambda: open_records(path).table("steps").num_rows > 100, "100 steps")
        yield LiveRun(job, folder, early)


@pytest.fixture
def live(running: LiveRun) -> Path:
    return running.path


def test_the_view_can_be_started_together_with_the_run(running: LiveRun):
    assert running.early.startswith("base   attempt 1   1 rank   running")


def test_a_frame_of_a_running_job_shows_its_speed_its_worker_and_its_line(live: Path):
    def with_worker() -> str:
        text = once(live)  # a pipe: one frame
        return text if re.search(r"^worker +0 .*\.py:\d+", text, re.MULTILINE) else ""

    # It lives for an epoch, and what it does is written each second.
    text = eventually(with_worker, "a frame with the worker and its line")
    lines = text.splitlines()
    assert lines[0].startswith("base   attempt 1   1 rank   running, ")
    (rate,) = re.findall(r"^([\d.,]+) steps/s", text, re.MULTILINE)
    assert float(rate.replace(",", "")) > 1
    assert "samples/s" in text
    assert re.search(r"█ data wait ", text)
    assert re.search(r"^rank +0 .*(until_file|points)\.py:\d+", text, re.MULTILINE)
    assert re.search(r"^last \d.*: .*\.$", text, re.MULTILINE | re.DOTALL)
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in text


def test_what_a_look_reads_is_what_is_stored(live: Path):
    watch = RunWatcher(live)

    def heard_from() -> TopState | None:
        """A look that finds new records: on a full host they may be late for one."""
        state = watch.look()
        return state if state.status.silent_s == 0 else None

    state = eventually(heard_from, "a look that finds new records")
    assert state.status.live
    assert state.status.recording
    rates = {each.rank: each.steps_per_s for each in state.steps.ranks}
    assert rates[0] > 1
    assert state.steps.times is not None
    # What ended just before the last sample of the host may come in after it.
    assert 0 < state.steps.times.count <= steps_in(live, state.window)
    assert {each.rank for each in state.processes} == {0}
    assert len(state.host.cores) == len(os.sched_getaffinity(0))


def steps_in(run_folder: Path, window: TimeWindow) -> int:
    steps = open_records(run_folder).table("steps").to_pylist()
    ended = [row["start_ns"] + row["wall_ns"] for row in steps if row["kind"] == "train"]
    return sum(window.since_ns < each <= window.until_ns for each in ended)


@pytest.mark.parametrize("key", [b"\x03", b"sigterm"])
def test_leaving_leaves_the_terminal_as_it_was(live: Path, key: bytes):
    with terminal(str(live), "--interval", "200ms") as screen:
        screen.shows("steps/s")
        screen.shows("q leaves")
        assert ALONE_IN in screen.output
        assert not termios.tcgetattr(screen.slave)[3] & termios.ECHO
        if key == b"sigterm":
            screen.process.send_signal(signal.SIGTERM)
            assert screen.ended() == 128 + signal.SIGTERM
        else:
            screen.press(key)
            assert screen.ended() == 0
        assert screen.is_as_before()


def test_the_page_of_a_running_job_says_that_it_goes_on(live: Path, tmp_path: Path):
    page = Page(write_report(live, output=tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "The run is going on" in page.text
    assert "timeline" in page.charts


def test_a_pause_holds_the_frame_and_the_end_of_a_run_is_shown(running: LiveRun, tmp_path: Path):
    path = running.path
    with terminal(str(path), "--interval", "200ms") as screen:
        screen.shows("steps/s")
        screen.press(b"\x1b[A")  # an arrow does nothing
        screen.press(b"p")
        screen.shows("paused")
        screen.output = ""
        screen.press(b"p")
        screen.shows("running")
        eventually(lambda: "paused" not in screen.text().rpartition("attempt 1")[2], "going on")
        screen.output = ALONE_IN
        (running.folder / "stop").touch()
        assert running.job.wait(timeout=DEADLINE_S) == 0
        screen.shows("over after")
        screen.shows("exit code 0")
        screen.shows("the whole run:")
        screen.press(b"q")
        assert screen.ended() == 0
        assert screen.is_as_before()
        assert "base is over. More: headrace doctor" in screen.text()
    state = RunWatcher(path).look()
    assert state.steps.times is not None
    assert state.steps.times.count == steps_in(path, state.window) > 0
    text = once(path)
    assert "exit code 0" in text.splitlines()[0]
    doctor = run_here(path.parent, "doctor", str(path))
    verdict = " ".join(doctor.stdout.split("\n\n")[0].split("\n")[0].split())
    assert verdict[:60] in " ".join(text.split())
    check_a_killed_job(path, tmp_path / "killed")
    check_a_newer_version(path, tmp_path / "newer")


def begun(folder: Path) -> RunFolder:
    """A run whose script has been started, and the process that collects its records not yet."""
    run_folder = open_run_folder(run_dir=str(folder), name=None, script="train.py")
    attempt = run_folder.start_attempt(command=["headrace"], argv=["train.py"], world_size=1)
    (run_folder.records(attempt.number) / "rings").mkdir(parents=True)
    create_live_switch(run_folder.records(attempt.number), interval_s=0.5)
    # How long it is waited for counts from its start: on a full host a view starts late, too.
    move_start(run_folder, 60)
    return run_folder


def move_start(run_folder: RunFolder, seconds: float) -> None:
    """Set another start of a run's attempt, also for a reader under way."""
    path = run_folder.path / "run.json"
    content = json.loads(path.read_text())
    for clock in ("started_s", "started_boot_s"):
        content["attempts"][0][clock] += seconds
    draft = path.with_name("run.json.moved.tmp")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def test_a_run_in_its_first_second_is_waited_for(tmp_path: Path):
    folder = begun(tmp_path / "early")
    with waiting(folder) as view:
        # Only now comes what a moment ago was not there.
        host = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "headrace.observe.probe.collector_process",
            ],
            stdin=subprocess.PIPE,
        )
        request = {"folder": str(folder.records(1)), "place": {"attempt": 1}}
        host.stdin.write(request_line(request).encode())
        host.stdin.flush()
        try:
            output, errors = view.communicate(timeout=DEADLINE_S)
        finally:
            host.communicate(timeout=DEADLINE_S)
    assert view.returncode == 0, errors
    assert output.startswith("early   attempt 1   1 rank   running")
    assert "no training step yet" in output


def test_a_run_that_ends_before_anything_is_recorded_is_reported(tmp_path: Path):
    folder = begun(tmp_path / "early")
    with waiting(folder) as view:
        folder.end_attempt(1, 3)
        move_start(folder, -60)  # or it would have ended before it began
        (folder.records(1) / "switch").unlink()
        output, errors = view.communicate(timeout=DEADLINE_S)
    assert (view.returncode, output) == (1, "")
    assert "early ended with exit code 3 after " in errors
    assert "before anything of it was recorded. What it printed is in" in errors


def test_ctrl_c_leaves_while_a_run_is_waited_for(tmp_path: Path):
    with waiting(begun(tmp_path / "early")) as view:
        view.send_signal(signal.SIGINT)
        output, errors = view.communicate(timeout=DEADLINE_S)
    assert (view.returncode, output) == (0, "")
    assert "Traceback" not in errors


@contextmanager
def waiting(folder: RunFolder) -> Iterator[subprocess.Popen[str]]:
    """`headrace top` that has printed that it waits for the run's first records."""
    view = subprocess.Popen(
        [*TOP, str(folder.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=clean_environment(COLUMNS="80"),
    )  # fmt: skip
    try:
        assert view.stderr is not None
        line = view.stderr.readline()
        assert line == "headrace: early has just begun; waiting for its first records\n"
        yield view
    finally:
        view.kill()
        view.wait()


def test_a_run_that_goes_on_unrecorded_is_not_waited_for(tmp_path: Path):
    folder = open_run_folder(run_dir=str(tmp_path / "unseen"), name=None, script="train.py")
    folder.start_attempt(command=["headrace"], argv=["train.py"], world_size=1)
    move_start(folder, -60)
    with pytest.raises(RecordsError, match="unless --profile is off"):
        top(str(folder.path))


def check_a_killed_job(path: Path, copy: Path) -> None:
    """What a killed job leaves: no end in run.json. (Its store: see test_a_killed_job_...)"""
    shutil.copytree(path, copy)
    text = (copy / "run.json").read_text()
    text = re.sub(r'"(ended_s|exit_code)": [^,\n]+', r'"\1": null', text)
    (copy / "run.json").write_text(text)
    assert "nothing was left to say how" in once(copy).splitlines()[0]
    (copy / "run.json").write_text("{")  # damaged: the records speak for themselves
    assert once(copy).startswith("killed   attempt 1   1 rank   over")


def check_a_newer_version(path: Path, copy: Path) -> None:
    shutil.copytree(path, copy)
    (records,) = (copy / "records").iterdir()
    for table in records.glob("*.parquet"):
        table.unlink()
    with sqlite3.connect(records / "one.sqlite") as store:
        store.execute("PRAGMA user_version = 99")
    with pytest.raises(RecordsError, match="newer Headrace wrote these records"):
        top(str(copy))


def test_a_killed_job_shows_its_last_state(tmp_path: Path):
    path = tmp_path / "runs" / "cut"
    with started(
        tmp_path, "--name", "cut", str(SCRIPT), str(tmp_path / "stop"), str(tmp_path / "steps")
    ) as job:
        eventually((tmp_path / "steps").exists, "the first step", START_S)
        eventually(lambda: open_records(path).table("steps").num_rows > 50, "50 steps")
        os.kill(job.pid, signal.SIGSTOP)  # else it might start another collector meanwhile
        for pid in [*descendants(job.pid), job.pid]:  # all at once, the collector too
            with suppress(ProcessLookupError):  # it ended with one killed before
                os.kill(pid, signal.SIGKILL)
        job.wait()
    eventually(lambda: not open_records(path).live, "the collector's end")
    text = once(path)
    assert re.search(r"over after .*: nothing was left to say how", text.splitlines()[0])
    assert re.search(r"^[\d.,]+ steps/s", text, re.MULTILINE)
    assert "the whole run: " in text
    page = Page(write_report(path).read_text(encoding="utf-8"))
    check_alone(page)
    assert "it was probably killed" in page.text
    assert "timeline" in page.charts


def test_what_cannot_be_shown_is_reported_in_a_sentence(tmp_path: Path):
    with pytest.raises(UsageError, match="There is no run 'nothing'"):
        top("nothing", runs_dir=str(tmp_path))
    with pytest.raises(UsageError, match="There is no run in"):
        top(runs_dir=str(tmp_path))
    with pytest.raises(UsageError, match="100ms to 60s"):
        top("nothing", runs_dir=str(tmp_path), interval="5ms")
    (tmp_path / "quick.py").write_text("print('done')\n")
    ended = run_here(tmp_path, "run", "--name", "unseen", "--profile", "off", "quick.py")
    assert ended.returncode == 0, ended.stderr
    with pytest.raises(RecordsError, match=r"has no records.*unless --profile is off"):
        top("unseen", runs_dir=str(tmp_path / "runs"))


def test_a_run_without_any_step_has_a_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "quick.py").write_text("print('done')\n")
    assert run_here(tmp_path, "run", "--name", "quick", "quick.py").returncode == 0
    top("quick", runs_dir=str(tmp_path / "runs"), once=True)
    text = capsys.readouterr().out
    assert "no training step yet" in text
    assert "exit code 0" in text
