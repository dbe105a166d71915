"""Messages between the launcher and its sync processes: the task, and the end of the job."""

from __future__ import annotations

import json
import os
import select
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTask:
    """What such a process is to do.

    Attributes:
        url: Where files are kept.
        folder: Whose files.
        host: The host's name.
        others: The job's other hosts; None: they are not known.
        lock: A file of this machine; of several processes that have one, one works.
        parent: The process that has started it.
    """

    url: str
    folder: str
    host: str
    others: tuple[str, ...] | None
    lock: str
    parent: int

    def to_json(self) -> str:
        """Return a line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SyncTask:
        """Return the task that `to_json` told."""
        told: dict[str, Any] = json.loads(text)
        others = told["others"]
        return cls(**{**told, "others": None if others is None else tuple(others)})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTask:
    """What a process is to do that uploads what a job makes.

    Attributes:
        url: The output path.
        job: The job's name.
        run: The run's folder on this host.
    """

    url: str
    job: str
    run: str

    def to_json(self) -> str:
        """Return a line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> OutputTask:
        """Return the task that `to_json` told."""
        return cls(**json.loads(text))


_ORPHAN_DEADLINE_S = 60.0


class SyncProcessInput:
    """Standard input, after the line that told the task."""

    def __init__(self) -> None:
        self._line = b""
        self._over = False

    def within(self, seconds: float) -> bool:
        """Wait so long; return whether the job has ended."""
        if self._over:
            return True
        if select.select([0], [], [], seconds)[0]:
            piece = os.read(0, 4096)
            self._line += piece
            self._over = not piece or piece.endswith(b"\n")
        return self._over

    def end(self) -> tuple[bool, bool, float]:
        """Return whether somebody asked, whether no rank was killed, and a deadline in seconds."""
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(self._line)
            return True, bool(told["clean"]), float(told["deadline_s"])
        return False, False, _ORPHAN_DEADLINE_S


def read_task_line() -> str:
    """Return the line that tells the task."""
    with os.fdopen(0, "rb", buffering=0, closefd=False) as told:
        return told.readline().decode()


def finish_process(process: subprocess.Popen[bytes], *, clean: bool, deadline_s: float) -> int:
    """Have a process upload what is left; return its code once it has ended, by force at last.

    Args:
        process: It reads one line about the job's end from its standard input.
        clean: No rank was killed, perhaps in the middle of writing a file.
        deadline_s: How long it may take; it is killed a little later.
    """
    assert process.stdin is not None
    told = {"clean": clean, "deadline_s": deadline_s}
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.close()
    try:
        return process.wait(timeout=deadline_s + 10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
