"""The agent of a host in a cluster: the host's ranks, their output and their log files.

An agent is a Ray actor of the job that created it, so it ends with that job, and all that it has
started ends with it: the kernel sees to that. Log files are passed on as they grow.
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

from headrace.cluster.same_host import HostMarker, is_same_host
from headrace.core import env
from headrace.core.process.mount_namespace import can_bind_mount
from headrace.core.source_location import SITECUSTOMIZE_DIR

_MAX_GROWTH_BYTES = 8 << 20  # at a time: what is left comes with the next look


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGrowth:
    """What a file has more than at the last look.

    Attributes:
        path: The file, from the folder on.
        start: Where the new bytes belong.
        content: The new bytes.
    """

    path: str
    start: int
    content: bytes


class FolderTail:
    """Looks at a folder whose files only grow.

    Args:
        folder: It need not exist yet.
        pattern: What files are looked at, such as `**/rank-*`.
    """

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._seen: dict[Path, int] = {}

    def growth(self) -> list[FileGrowth]:
        """Return what is new since the last call, some megabytes at most; the rest comes later."""
        grown: list[FileGrowth] = []
        for path in sorted(self._folder.glob(self._pattern)):
            left = _MAX_GROWTH_BYTES - sum(len(growth.content) for growth in grown)
            with suppress(OSError):  # it went away as it was looked at
                grown += self._growth_of(path, left)
        return grown

    def _growth_of(self, path: Path, most_bytes: int) -> list[FileGrowth]:
        seen = self._seen.get(path, 0)
        if not path.is_file() or (path in self._seen and path.stat().st_size <= seen):
            return []
        with path.open("rb") as file:
            file.seek(seen)
            content = file.read(most_bytes)
        if not content and path in self._seen:
            return []
        self._seen[path] = seen + len(content)
        relative = path.relative_to(self._folder).as_posix()
        return [FileGrowth(path=relative, start=seen, content=content)]


def append_growths(folder: Path, growths: Sequence[FileGrowth]) -> None:
    """Have a copy of the folder grow likewise; raises OSError where it cannot be written."""
    for growth in growths:
        path = folder / growth.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(growth.start)
            file.write(growth.content)


_WAIT_S = 1.0  # how long `news` waits for some; a host that says nothing for long is lost
_MAX_QUEUED_LINES = 4096  # lines of output that nobody has fetched; then the programs' pipes fill
_OUTPUT_DRAIN_S = 5.0

OutputStream = Literal["stdout", "stderr"]


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
class HostProgram:
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
class AgentReport:
    """What happened since an agent was asked last.

    Attributes:
        output: What was said, and where, in that order.
        announced: Lines of JSON that the program announced.
        logs: How the files of the agent's `{logs}` have grown.
        returncode: How it ended, -n for signal n; None while it runs.
        clock_s: The host's clock as this is told, in seconds since 1970.
    """

    output: list[tuple[OutputStream, bytes]] = field(default_factory=list)
    announced: list[dict[str, Any]] = field(default_factory=list)
    logs: list[FileGrowth] = field(default_factory=list)
    returncode: int | None = None
    clock_s: float = 0.0


class HostAgent:
    """The agent of one host; each method may be called while another is at work.

    Args:
        variables: What programs have beside what is sent, and before that.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._said: queue.Queue[tuple[str, Any]] = queue.Queue(_MAX_QUEUED_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_by: int | None = None
        self._go: int | None = None
        self._starting = threading.Lock()
        self._keeping = threading.Lock()
        self._kept: dict[str, int] = {}  # names of files, and which version each is
        self._ended: int | None = None
        self._folder: Path | None = None
        self._tail: FolderTail | None = None

    def look(self, mark: HostMarker, address: str) -> HostFacts:
        """Return what there is to know of this host."""
        with socket.socket() as probe:
            probe.bind((address, 0))
            free_port = int(probe.getsockname()[1])
        return HostFacts(
            address=address,
            is_drivers=is_same_host(mark),
            free_port=free_port,
            folder=str(Path.cwd()),
        )

    def can_bind_mount(self, place: str) -> bool:
        """Return whether a program may see something else at a place of this host's."""
        return can_bind_mount(place)

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

    def start(self, program: HostProgram) -> None:
        """Run a program; `news` tells of it. Once it has told the end, another may be started."""
        self._tail = self._tail or FolderTail(self._own_folder() / "logs", "**/*")
        with self._starting:
            self._process, self._ended = None, None
        # A thread that lives as long: the program ends with the thread that started it.
        threading.Thread(target=self._run, args=[program], name="program", daemon=True).start()

    def news(self, _started: None = None) -> AgentReport:
        """Return what happened meanwhile; waits about a second for something to happen.

        Args:
            _started: What `start` returns, for callers of several programs: Ray waits for it first.
        """
        news = AgentReport()
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

    def _run(self, program: HostProgram) -> None:
        code = 1
        try:
            code = self._run_to_its_end(program)
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear of the end
            self._said.put(("stderr", f"headrace: {program.command[0]}: {error!r}\n".encode()))
        finally:
            self._said.put(("ended", code))

    def _run_to_its_end(self, program: HostProgram) -> int:
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
            "site": env.pythonpath_with(SITECUSTOMIZE_DIR),
            **{name: f"{self._folder}/{name}" for name in program.files},
        }
        environment = {
            name: _substitute(value, standing) for name, value in program.environment.items()
        }
        with self._starting:
            try:
                process = subprocess.Popen(
                    [_substitute(argument, standing) for argument in program.command],
                    cwd=program.folder,
                    env={
                        **env.ray_program_environment(environment, is_whole=program.is_whole),
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
            reader.join(_OUTPUT_DRAIN_S)
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


def _substitute(argument: str, standing: Mapping[str, str]) -> str:
    """Return an argument of a program, or what it stands for; others may have braces of their own.

    Args:
        argument: As it was sent.
        standing: What stands for what.
    """
    if argument.startswith("{") and argument.endswith("}"):
        return standing.get(argument[1:-1], argument)
    return argument
