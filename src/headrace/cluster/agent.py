"""The agent of a host in a cluster: the host's ranks, their output and their log files.

An agent is a Ray actor owned by the job's driver, so it ends with the driver, and the kernel ends
all processes that it started. Log files, what ranks log for experiments, and records go to the
driver as they grow.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from headrace.cluster.host_identity import HostMarker, free_port, is_same_host
from headrace.core import env
from headrace.core.errors import RecordsError
from headrace.core.file_lock import is_locked
from headrace.core.overrides import APPLIED
from headrace.core.process.mount_namespace import can_bind_mount
from headrace.core.scratch_folder import ScratchFolder
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.records.layout import LOCK, latest_records
from headrace.records.live_switch import LiveSwitch, SwitchState
from headrace.records.outbox import SentLine, unsent_lines

_MAX_GROWTH_BYTES = 8 << 20  # in one call; the rest follows in the next


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGrowth:
    """The bytes appended to a file since the last call."""

    path: str  # relative to the folder
    start: int  # the offset of the new bytes in the file
    content: bytes


class FolderTail:
    """A reader of what is appended to a folder's files of a glob pattern; it need not exist yet."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._seen: dict[Path, int] = {}

    def growth(self) -> list[FileGrowth]:
        """Return what was appended since the last call, at most 8 MiB; the rest follows."""
        grown: list[FileGrowth] = []
        for path in sorted(self._folder.glob(self._pattern)):
            left = _MAX_GROWTH_BYTES - sum(len(growth.content) for growth in grown)
            with suppress(OSError):  # it was removed meanwhile
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
    """Append the bytes to a copy of the folder; raises OSError where it cannot be written."""
    for growth in growths:
        path = folder / growth.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(growth.start)
            file.write(growth.content)


_LOGS, _SPOOL, _APPLIED = ("logs", "**/*"), ("experiment", "*.jsonl"), (APPLIED, "*")
"""What of an agent's folder goes to the driver: what programs print, what they log for experiments,
and which overrides were applied."""
_RECORDS_EVERY_S = 0.5  # as often as a collector writes some
_COLLECTOR_POLL_S = 0.05
_COLLECTOR_S = 15.0  # after its program: for a collector to write the last rows
_SENDING_S = 60.0  # after its program: for the driver, whose disk may be full, to take them in
_WAIT_S = 1.0  # longest wait of `report`; the driver takes a host that does not answer for lost
_MAX_QUEUED_LINES = 4096  # not fetched yet; beyond that the program's pipes fill up
_OUTPUT_DRAIN_S = 5.0

_FOLDER_PREFIX = "headrace-run-"

OutputStream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What an agent found on its host."""

    address: str  # by which other hosts reach it
    is_drivers: bool  # it shares machine and file system with the driver
    free_port: int
    folder: str  # the agent's working folder: the copy of the job's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """A program for an agent to run.

    An argument, or the value of a variable, may be a placeholder: `{python}` for the host's Python,
    `{parent}` for the agent's process id, `{announce}` for a descriptor that takes lines of JSON
    for the driver, `{go}` for one that becomes readable at `release`, `{folder}` for the agent's
    own folder, `{logs}` for one in it whose files are sent to the driver, `{pythonpath}` for
    PYTHONPATH with Headrace's sitecustomize in front, `{NAME}` for the path of a file in `files`.
    """

    command: Sequence[str]
    folder: str | None  # to work in; None: the agent's, which is the copy of the job's folder
    environment: Mapping[str, str]
    is_whole: bool  # `environment` is complete; else it is added to the host's own
    files: Mapping[str, bytes] = field(default_factory=dict)  # see `replace_file`
    version: int = 0  # of the files


@dataclass(slots=True, kw_only=True)
class AgentReport:
    """What an agent's program did since the last report."""

    output: list[tuple[OutputStream, bytes]] = field(default_factory=list)  # by lines, in order
    announced: list[dict[str, Any]] = field(default_factory=list)
    logs: list[FileGrowth] = field(default_factory=list)  # of the files of `{logs}`
    spool: list[FileGrowth] = field(default_factory=list)  # of what is logged for experiments
    applied: list[FileGrowth] = field(default_factory=list)  # of the marks of applied overrides
    records: list[SentLine] = field(default_factory=list)  # of the host's outbox
    returncode: int | None = None  # -n for signal n; None while it runs
    clock_s: float = 0.0  # the host's clock at the report, in seconds since 1970
    monotonic_ns: int = 0  # its monotonic clock at the report

    @property
    def has_files(self) -> bool:
        """Whether it has parts of files, of which more may follow."""
        return bool(self.logs or self.spool or self.applied or self.records)


def _has_other_process(folder: Path) -> bool:
    """Return whether a process goes on in the folder of an agent that was killed.

    One that uploads checkpoints or collects records holds a lock there until it has ended.
    """
    locks = (*folder.glob(f"*/*{LOCK}"), *folder.glob(f"records/*/*{LOCK}"))
    return any(is_locked(lock, unknown=True) for lock in locks)


class HostAgent:
    """The agent of one host; its methods may be called concurrently.

    `variables` are set for all programs, over those of a program.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue(_MAX_QUEUED_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_signal: int | None = None
        self._go_write: int | None = None
        self._process_lock = threading.Lock()
        self._files_lock = threading.Lock()
        self._file_versions: dict[str, int] = {}
        self._returncode: int | None = None
        self._scratch: ScratchFolder | None = None
        self._tails: list[FolderTail] = []  # of logs, spool and applied overrides
        self._ended_s: float | None = None  # when the program had ended
        self._recorded_s = 0.0  # when records were looked for

    def inspect(self, marker: HostMarker, address: str) -> HostFacts:
        """Return what a driver has to know of this host."""
        return HostFacts(
            address=address,
            is_drivers=is_same_host(marker),
            free_port=free_port(address),
            folder=str(Path.cwd()),
        )

    def can_bind_mount(self, path: str) -> bool:
        """Return whether programs here can have another folder mounted at a path."""
        return can_bind_mount(path)

    def replace_file(self, name: str, content: bytes, version: int) -> None:
        """Replace one of the program's files atomically.

        Calls may arrive out of order: a version older than the present one is ignored.
        """
        path = self._own_folder() / name
        path.parent.mkdir(exist_ok=True)
        with self._files_lock:
            if version < self._file_versions.get(name, version):
                return
            self._file_versions[name] = version
            draft = path.with_name(f"{path.name}.draft")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            draft.replace(path)

    def start(self, program: HostProgram) -> None:
        """Start a program, which `report` reports on; the next one only once it has ended."""
        if not self._tails:
            self._tails = [
                FolderTail(self._own_folder() / name, pattern)
                for name, pattern in (_LOGS, _SPOOL, _APPLIED)
            ]
        with self._process_lock:
            self._process, self._returncode, self._ended_s = None, None, None
        # In a thread that outlives it: the kernel ends a program with the thread that started it.
        threading.Thread(target=self._run, args=[program], name="program", daemon=True).start()

    def report(self, _started: None = None, received: int = 0) -> AgentReport:
        """Return what happened since the last call; waits a second at most if nothing has.

        Ray awaits the result of `start`, given as `_started`, before, and raises its error. Lines
        of records are sent again until the driver has `received` them, by their numbers.
        """
        report = AgentReport()
        for kind, value in self._queued_events():
            if kind == "ended":
                self._returncode, self._ended_s = value, time.monotonic()
            elif kind == "announced":
                report.announced.append(json.loads(value))
            else:
                report.output.append((kind, value))  # type: ignore[arg-type]  # an OutputStream
        if self._tails:
            report.logs, report.spool, report.applied = (tail.growth() for tail in self._tails)
            is_complete = self._has_collected()  # before the lines: then these are the last ones
            report.records = self._recorded(received)
            if not report.has_files and is_complete:
                report.returncode = self._returncode
            elif self._returncode is not None and not is_complete:
                time.sleep(_COLLECTOR_POLL_S)
        report.clock_s, report.monotonic_ns = time.time(), time.monotonic_ns()
        return report

    def switch_recording(self, state: SwitchState) -> None:
        """Have what the program's processes record switched as on the driver's host."""
        records = latest_records(self._own_folder())
        if records is not None:
            with suppress(RecordsError):  # the program is not recorded yet, or no more
                LiveSwitch(records).state = state

    def _recorded(self, received: int) -> list[SentLine]:
        now_s = time.monotonic()
        if self._ended_s is None and now_s < self._recorded_s + _RECORDS_EVERY_S:
            return []
        if self._ended_s is not None and now_s > self._ended_s + _SENDING_S:
            return []
        self._recorded_s = now_s
        records = latest_records(self._own_folder())
        return [] if records is None else unsent_lines(records, received, _MAX_GROWTH_BYTES)

    def _has_collected(self) -> bool:
        """Return whether the program's collector has ended, or takes too long."""
        if self._ended_s is None:
            return False
        records = latest_records(self._own_folder())
        is_late = time.monotonic() > self._ended_s + _COLLECTOR_S
        locks = [] if records is None else list(records.glob(f"*{LOCK}"))
        return is_late or not any(is_locked(lock, unknown=True) for lock in locks)

    def stop(self, number: int) -> None:
        """Send the program a signal; SIGKILL goes to its whole process group."""
        with self._process_lock:
            process = self._process
            if process is None:
                self._stop_signal = number  # not started yet: `_run_to_end` sends it then
                return
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def release(self) -> None:
        """Release the program from its wait for the programs of other hosts."""
        with self._process_lock, suppress(OSError):  # the program has ended
            if self._go_write is not None:
                os.write(self._go_write, b"\n")

    def _own_folder(self) -> Path:
        with self._process_lock:
            if self._scratch is None:
                self._scratch = ScratchFolder(_FOLDER_PREFIX, is_used=_has_other_process)
            return self._scratch.path

    def remove_folder(self) -> None:
        """Remove the agent's folder from its host's disk."""
        if self._scratch is not None:
            self._scratch.remove()

    def _queued_events(self) -> Iterator[tuple[str, Any]]:
        with suppress(queue.Empty):
            yield self._events.get(timeout=0.0 if self._returncode is not None else _WAIT_S)
            while True:
                yield self._events.get_nowait()

    def _run(self, program: HostProgram) -> None:
        code = 1
        try:
            code = self._run_to_end(program)
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must get the end
            self._events.put(("stderr", f"headrace: {program.command[0]}: {error!r}\n".encode()))
        finally:
            self._events.put(("ended", code))

    def _run_to_end(self, program: HostProgram) -> int:
        for name, content in program.files.items():
            self.replace_file(name, content, program.version)
        announce_read, announce_write = os.pipe()
        go_read, go_write = os.pipe()
        folder = self._own_folder()
        values = {
            "python": sys.executable,
            "parent": str(os.getpid()),
            "announce": str(announce_write),
            "go": str(go_read),
            "folder": str(folder),
            "logs": f"{folder}/{_LOGS[0]}",
            "pythonpath": env.pythonpath_with(SITECUSTOMIZE_DIR),
            **{name: f"{folder}/{name}" for name in program.files},
        }
        variables = program.environment.items()
        environment = {name: _substitute(value, values) for name, value in variables}
        with self._process_lock:
            try:
                process = subprocess.Popen(
                    [_substitute(argument, values) for argument in program.command],
                    cwd=program.folder,
                    env={
                        **env.ray_program_environment(environment, is_whole=program.is_whole),
                        **self._variables,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[announce_write, go_read],
                    start_new_session=True,
                )
            except BaseException:
                os.close(go_write)
                raise
            finally:
                os.close(announce_write)
                os.close(go_read)
            self._process, self._go_write = process, go_write
        if self._stop_signal is not None:
            self.stop(self._stop_signal)
        readers = self._readers(process, announce_read)
        code = process.wait()
        with self._process_lock:
            self._go_write = None
            os.close(go_write)
        for reader in readers:  # a process that ranks left running may hold a pipe open
            reader.join(_OUTPUT_DRAIN_S)
        return code

    def _readers(
        self, process: subprocess.Popen[bytes], announce_read: int
    ) -> list[threading.Thread]:
        assert process.stdout is not None
        assert process.stderr is not None
        announced = os.fdopen(announce_read, "rb")
        sources = {"stdout": process.stdout, "stderr": process.stderr, "announced": announced}
        readers = [
            threading.Thread(target=self._read, args=source, daemon=True)
            for source in sources.items()
        ]
        for reader in readers:
            reader.start()
        return readers

    def _read(self, source: str, lines: IO[bytes]) -> None:
        # By whole lines, as the driver interleaves those of several hosts.
        for line in lines:
            self._events.put((source, line))


def _substitute(argument: str, values: Mapping[str, str]) -> str:
    """Return the value that an argument `{name}` stands for; other arguments as they are."""
    if argument.startswith("{") and argument.endswith("}"):
        return values.get(argument[1:-1], argument)
    return argument
