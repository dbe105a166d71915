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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from headrace.cluster.folder_tail import FolderTail, Growth
from headrace.cluster.machine import Mark, is_same_machine
from headrace.core import env
from headrace.core.placed import may_place
from headrace.core.places import SITE

_WAIT_S = 1.0  # how long `news` waits for some; a host that says nothing for long is lost
_MOST_PIECES = 4096  # lines of output that nobody has fetched; then the programs' pipes fill
_LAST_WORDS_S = 5.0

Source = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What an agent found on its host.

    Attributes:
        address: As other hosts reach it.
        is_drivers: It is the machine, with the file system, of whoever asked for the agent.
        free_port: A port that was free.
        folder: Where the agent stands: the copy of the job's folder.
    """

    address: str
    is_drivers: bool
    free_port: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What an agent is to run.

    Attributes:
        command: Its arguments; `{python}`, `{parent}` and `{announce}` stand for the host's Python,
            the agent's process id, and a descriptor for lines of JSON that the agent passes on;
            `{go}` for one from which a byte can be read once `go` was called. `{NAME}` stands for
            the file of that name among `files`.
        folder: Where it starts; None: where the agent is, with the copy of the job's folder.
        environment: Its variables. In them and in arguments `{folder}` is a folder of the agent's,
            and `{logs}` one in it, whose files come with the news; `{site}` is the variable
            PYTHONPATH with what has scripts begin as Headrace wants it.
        is_whole: They are all; otherwise they come beside those of the host.
        files: Content of files that it finds, by their names; `keep` writes them anew.
        version: Of the files.
    """

    command: Sequence[str]
    folder: str | None
    environment: Mapping[str, str]
    is_whole: bool
    files: Mapping[str, bytes] = field(default_factory=dict)
    version: int = 0


@dataclass(slots=True, kw_only=True)
class News:
    """What happened since an agent was asked last.

    Attributes:
        output: What was said, and where, in that order.
        announced: Lines of JSON that the program announced.
        logs: How the files of the agent's `{logs}` have grown.
        returncode: How it ended, -n for signal n; None while it runs.
        clock_s: The host's clock as this is told, in seconds since 1970.
    """

    output: list[tuple[Source, bytes]] = field(default_factory=list)
    announced: list[dict[str, Any]] = field(default_factory=list)
    logs: list[Growth] = field(default_factory=list)
    returncode: int | None = None
    clock_s: float = 0.0


class HostAgent:
    """The agent of one host; each method may be called while another is at work.

    Args:
        variables: What programs have beside what is sent, and before that.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._said: queue.Queue[tuple[str, Any]] = queue.Queue(_MOST_PIECES)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_by: int | None = None
        self._go: int | None = None
        self._starting = threading.Lock()
        self._keeping = threading.Lock()
        self._kept: dict[str, int] = {}  # names of files, and which version each is
        self._ended: int | None = None
        self._folder: Path | None = None
        self._tail: FolderTail | None = None

    def look(self, mark: Mark, address: str) -> HostFacts:
        """Return what there is to know of this host."""
        with socket.socket() as probe:
            probe.bind((address, 0))
            free_port = int(probe.getsockname()[1])
        return HostFacts(
            address=address,
            is_drivers=is_same_machine(mark),
            free_port=free_port,
            folder=str(Path.cwd()),
        )

    def may_place(self, place: str) -> bool:
        """Return whether a program may see something else at a place of this host's."""
        return may_place(place)

    def keep(self, name: str, content: bytes, version: int) -> None:
        """Write one of the program's files anew; it is whole at any moment.

        Calls may overtake one another: a version older than what is there is let go.
        """
        path = self._own_folder() / name
        with self._keeping:
            if version < self._kept.get(name, version):
                return
            self._kept[name] = version
            draft = path.with_name(f"{name}.draft")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            draft.replace(path)

    def start(self, program: Program) -> None:
        """Run a program; `news` tells of it. Once it has told the end, another may be started."""
        self._tail = self._tail or FolderTail(self._own_folder() / "logs", "**/*")
        with self._starting:
            self._process, self._ended = None, None
        # A thread that lives as long: the program ends with the thread that started it.
        threading.Thread(target=self._run, args=[program], name="program", daemon=True).start()

    def news(self, _started: None = None) -> News:
        """Return what happened meanwhile; waits about a second for something to happen.

        Args:
            _started: What `start` returns, for callers of several programs: Ray waits for it first.
        """
        news = News()
        for kind, value in self._pieces():
            if kind == "ended":
                self._ended = value
            elif kind == "announced":
                news.announced.append(json.loads(value))
            else:
                news.output.append((kind, value))  # type: ignore[arg-type]  # kind is a Source
        if self._tail is not None:
            news.logs = self._tail.growth()
        if not news.logs:  # else there may be more
            news.returncode = self._ended
        news.clock_s = time.time()
        return news

    def stop(self, number: int) -> None:
        """Send the program a signal: one that asks it to end, or SIGKILL for it and all its own."""
        with self._starting:
            process = self._process
            if process is None:
                self._stopped_by = number  # it is only just being started
                return
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def go(self) -> None:
        """Have the program go on where it waits for those of other hosts."""
        with self._starting, suppress(OSError):  # it has ended meanwhile
            if self._go is not None:
                os.write(self._go, b"\n")

    def _own_folder(self) -> Path:
        with self._starting:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="headrace-run-"))
            return self._folder

    def leave(self) -> None:
        """Remove what the agent keeps on its host's disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _pieces(self) -> Iterator[tuple[str, Any]]:
        with suppress(queue.Empty):
            yield self._said.get(timeout=0.0 if self._ended is not None else _WAIT_S)
            while True:
                yield self._said.get_nowait()

    def _run(self, program: Program) -> None:
        code = 1
        try:
            code = self._run_to_its_end(program)
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear of the end
            self._said.put(("stderr", f"headrace: {program.command[0]}: {error!r}\n".encode()))
        finally:
            self._said.put(("ended", code))

    def _run_to_its_end(self, program: Program) -> int:
        for name, content in program.files.items():
            self.keep(name, content, program.version)
        reading, writing = os.pipe()
        waiting, go = os.pipe()
        standing = {
            "python": sys.executable,
            "parent": str(os.getpid()),
            "announce": str(writing),
            "go": str(waiting),
            "folder": str(self._folder),
            "logs": f"{self._folder}/logs",
            "site": env.path_with(SITE),
            **{name: f"{self._folder}/{name}" for name in program.files},
        }
        environment = {
            name: _filled(value, standing) for name, value in program.environment.items()
        }
        with self._starting:
            try:
                process = subprocess.Popen(
                    [_filled(argument, standing) for argument in program.command],
                    cwd=program.folder,
                    env={
                        **env.environment_below_ray(environment, is_whole=program.is_whole),
                        **self._variables,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[writing, waiting],
                    start_new_session=True,
                )
            except BaseException:
                os.close(go)
                raise
            finally:
                os.close(writing)
                os.close(waiting)
            self._process, self._go = process, go
        if self._stopped_by is not None:
            self.stop(self._stopped_by)
        readers = self._readers(process, reading)
        code = process.wait()
        with self._starting:
            self._go = None
            os.close(go)
        for reader in readers:  # what ranks left running may keep a pipe open
            reader.join(_LAST_WORDS_S)
        return code

    def _readers(
        self, process: subprocess.Popen[bytes], announcements: int
    ) -> list[threading.Thread]:
        assert process.stdout is not None
        assert process.stderr is not None
        sources = {
            "stdout": process.stdout,
            "stderr": process.stderr,
            "announced": os.fdopen(announcements, "rb"),
        }
        readers = [
            threading.Thread(target=self._read, args=[source, file], daemon=True)
            for source, file in sources.items()
        ]
        for reader in readers:
            reader.start()
        return readers

    def _read(self, source: str, lines: IO[bytes]) -> None:
        # Whole lines: those of other hosts come between.
        for line in lines:
            self._said.put((source, line))


def _filled(argument: str, standing: Mapping[str, str]) -> str:
    """Return an argument of a program, or what it stands for; others may have braces of their own.

    Args:
        argument: As it was sent.
        standing: What stands for what.
    """
    if argument.startswith("{") and argument.endswith("}"):
        return standing.get(argument[1:-1], argument)
    return argument
