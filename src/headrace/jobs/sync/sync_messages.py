"""The messages between the launcher and its sync processes: the task, and the job's end."""

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
    """The task of a sync process.

    Attributes:
        url: The URL of the remote copy.
        folder: The folder to sync.
        host: The host's name.
        others: The job's other hosts; None: unknown.
        lock: A lock file; of several processes on this machine with the same one, one works.
        parent: The pid of the process that started it.
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
        """Return the task of a `to_json` text."""
        fields: dict[str, Any] = json.loads(text)
        others = fields["others"]
        return cls(**{**fields, "others": None if others is None else tuple(others)})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTask:
    """The task of a process that uploads a job's outputs.

    Attributes:
        url: The output path.
        job: The job's name.
        run: The run folder on this host.
    """

    url: str
    job: str
    run: str

    def to_json(self) -> str:
        """Return a line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> OutputTask:
        """Return the task of a `to_json` text."""
        return cls(**json.loads(text))


_ORPHAN_DEADLINE_S = 60.0


class SyncProcessInput:
    """The standard input of a sync process, after the line with its task."""

    def __init__(self) -> None:
        self._line = b""
        self._over = False

    def within(self, seconds: float) -> bool:
        """Wait for some seconds; return whether the job has ended."""
        if self._over:
            return True
        if select.select([0], [], [], seconds)[0]:
            piece = os.read(0, 4096)
            self._line += piece
            self._over = not piece or piece.endswith(b"\n")
        return self._over

    def end(self) -> tuple[bool, bool, float]:
        """Return whether the launcher wrote an end, whether no rank was killed, a deadline (s)."""
        with suppress(ValueError, KeyError, TypeError):
            message = json.loads(self._line)
            return True, bool(message["clean"]), float(message["deadline_s"])
        return False, False, _ORPHAN_DEADLINE_S


def read_task_line() -> str:
    """Return the line with the task."""
    with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
        return stdin.readline().decode()


def finish_process(process: subprocess.Popen[bytes], *, clean: bool, deadline_s: float) -> int:
    """Have a process upload the remaining files and end; kill it at last. Return its code.

    Args:
        process: A sync process, which reads one line about the job's end on standard input.
        clean: No rank was killed, possibly while it wrote a file.
        deadline_s: How long the upload may take; the process is killed a little later.
    """
    assert process.stdin is not None
    message = {"clean": clean, "deadline_s": deadline_s}
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.close()
    try:
        return process.wait(timeout=deadline_s + 10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
