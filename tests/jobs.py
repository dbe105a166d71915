"""Real `headrace run` processes for the tests: started, watched through /proc, ended."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from headrace.cli.main import run_command_line
from headrace.data.storage.client import fork_state

DEADLINE_S = 180.0


def headrace(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.main", *arguments]


def run(
    folder: Path, *arguments: str, timeout_s: float = DEADLINE_S, stdin: str = "", **extra: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        headrace("run", *arguments),
        cwd=folder,
        env=clean_environment(**extra),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run_here(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `headrace <arguments>` within this process, without a second Python.

    A dry run, a refusal, a report takes milliseconds; a script that is run directly starts as its
    own process, as always. What ends by a signal or is about the terminal goes through `run`.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    environment, here = clean_environment(**extra), Path.cwd()
    before, leaf = dict(os.environ), fork_state._State.leaf
    os.chdir(folder)
    _set_environment(environment)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run_command_line(arguments)
    finally:
        _set_environment(before)
        os.chdir(here)
        fork_state._State.leaf = leaf  # a verb's own process never forks; that of the tests does
    assert isinstance(code, int)
    written = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(arguments, code, *written)


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def on_two_hosts(address: str) -> list[str]:
    """Flags of a job on two hosts of group gpu, whose run's folder is `r`."""
    return ["--engine", "ray", "--address", address, "--group", "gpu=2", "--run-dir", "r"]


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "terminal").open("wb") as terminal:
        job = subprocess.Popen(
            headrace("run", *arguments),
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.STDOUT,
        )
        try:
            yield job
        finally:
            for pid in [*descendants(job.pid), job.pid]:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            job.wait()


def clean_environment(**extra: str) -> dict[str, str]:
    dropped = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "HEADRACE_RUN_DIR"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | extra


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
    """Look until `condition` is met and return what it gave; fails at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout_s} s: {what}")
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):  # each has children of its own
        with suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, (thread / "children").read_text().split())
    return [found for child in children for found in (child, *descendants(child))]


def pids_in(folder: Path, count: int) -> list[int]:
    """The pids that a job's processes wrote into files pid-*, once all are there."""

    def written() -> list[int]:
        texts = [file.read_text() for file in sorted(folder.glob("pid-*"))]
        complete = len(texts) == count and all(text.endswith("\n") for text in texts)
        return [int(text) for text in texts] if complete else []

    pids: list[int] = eventually(written, f"{count} pid files in {folder}")
    return pids


def attempts_of(run_folder: Path) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = json.loads((run_folder / "run.json").read_text())["attempts"]
    return attempts
