"""What runs on a host of a cluster: starts the host's ranks, passes on what they say, stops them.

An agent is a Ray actor of the job that asked for it, so it ends with that job, and all that it has
started ends with it: the kernel sees to that.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headrace.cluster.folder_tail import FolderTail, Growth
from headrace.cluster.machine import Mark, is_same_machine
from headrace.core import env

_WAIT_S = 1.0  # how long `news` waits for some; a host that says nothing for long is lost
_MOST_PIECES = 256  # of output that nobody has fetched; then the programs' pipes fill
_PIECE_BYTES = 64 * 1024

Source = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What an agent found on its host.

    Attributes:
        address: As other hosts reach it.
        hostname: What the host calls itself.
        is_drivers: It is the machine, with the file system, of whoever asked for the agent.
        free_port: A port that was free.
    """

    address: str
    hostname: str
    is_drivers: bool
    free_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What an agent is to run.

    Attributes:
        command: Its arguments; `{python}`, `{parent}` and `{announce}` stand for the host's Python,
            the agent's process id, and a descriptor for lines of JSON that the agent passes on.
        folder: Where it starts; None: where the agent is, with the copy of the job's folder.
        environment: Its variables. In them and in arguments `{logs}` is a folder of the agent's,
            whose files come with the news.
        is_whole: They are all; otherwise they come beside those of the host.
    """

    command: Sequence[str]
    folder: str | None
    environment: Mapping[str, str]
    is_whole: bool


@dataclass(slots=True, kw_only=True)
class News:
    """What happened since an agent was asked last.

    Attributes:
        output: What was said, and where, in that order.
        announced: Lines of JSON that the program announced.
        logs: How the files of the agent's `{logs}` have grown.
        returncode: How it ended, -n for signal n; None while it runs.
    """

    output: list[tuple[Source, bytes]] = field(default_factory=list)
    announced: list[dict[str, Any]] = field(default_factory=list)
    logs: list[Growth] = field(default_factory=list)
    returncode: int | None = None


class HostAgent:
    """The agent of one host; each method may be called while another is at work."""

    def __init__(self) -> None:
        self._said: queue.Queue[tuple[str, Any]] = queue.Queue(_MOST_PIECES)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_by: int | None = None
        self._logs = Path(tempfile.mkdtemp(prefix="headrace-logs-"))
        self._tail = FolderTail(self._logs)

    def look(self, mark: Mark, address: str) -> HostFacts:
        """Return what there is to know of this host."""
        with socket.socket() as probe:
            probe.bind((address, 0))
            free_port = int(probe.getsockname()[1])
        return HostFacts(
            address=address,
            hostname=socket.gethostname(),
            is_drivers=is_same_machine(mark),
            free_port=free_port,
        )

    def start(self, program: Program) -> None:
        """Run a program; `news` tells of it. One at a time."""
        self._said = queue.Queue(_MOST_PIECES)
        self._process = None
        # A thread that lives as long: the program ends with the thread that started it.
        threading.Thread(target=self._run, args=[program], name="program", daemon=True).start()

    def news(self) -> News:
        """Return what happened meanwhile; waits about a second for something to happen."""
        news = News()
        for kind, value in self._pieces():
            if kind == "ended":
                news.returncode = value
            elif kind == "announced":
                news.announced.append(json.loads(value))
            else:
                news.output.append((kind, value))  # type: ignore[arg-type]  # kind is a Source
        news.logs = self._tail.growth()
        while news.returncode is not None and (more := self._tail.growth()):
            news.logs += more
        return news

    def stop(self, number: int) -> None:
        """Send the program a signal: one that asks it to end, or SIGKILL for it and all its own."""
        process = self._process
        if process is None:
            self._stopped_by = number  # it is only just being started
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def leave(self) -> None:
        """Remove what the agent keeps on its host's disk."""
        shutil.rmtree(self._logs, ignore_errors=True)

    def _pieces(self) -> Iterator[tuple[str, Any]]:
        with suppress(queue.Empty):
            yield self._said.get(timeout=_WAIT_S)
            while True:
                yield self._said.get_nowait()

    def _run(self, program: Program) -> None:
        reading, writing = os.pipe()
        standing = {
            "python": sys.executable,
            "parent": str(os.getpid()),
            "announce": str(writing),
            "logs": str(self._logs),
        }
        environment = {
            name: _filled(value, standing) for name, value in program.environment.items()
        }
        try:
            process = subprocess.Popen(
                [_filled(argument, standing) for argument in program.command],
                cwd=program.folder,
                env=env.environment_below_ray(environment, is_whole=program.is_whole),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[writing],
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            self._said.put(("stderr", f"headrace: {program.command[0]}: {error}\n".encode()))
            self._said.put(("ended", 127))
            return
        finally:
            os.close(writing)
        self._process = process
        if self._stopped_by is not None:
            self.stop(self._stopped_by)
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=[source, file], daemon=True)
            for source, file in (
                ("stdout", process.stdout.fileno()),
                ("stderr", process.stderr.fileno()),
            )
        ]
        for reader in readers:
            reader.start()
        self._read_announcements(reading)
        for reader in readers:
            reader.join()
        self._said.put(("ended", process.wait()))

    def _read(self, source: str, descriptor: int) -> None:
        while piece := os.read(descriptor, _PIECE_BYTES):
            self._said.put((source, piece))

    def _read_announcements(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                self._said.put(("announced", line))


def _filled(argument: str, standing: Mapping[str, str]) -> str:
    """Return an argument of a program, or what it stands for; others may have braces of their own.

    Args:
        argument: As it was sent.
        standing: What stands for what.
    """
    if argument.startswith("{") and argument.endswith("}"):
        return standing.get(argument[1:-1], argument)
    return argument
