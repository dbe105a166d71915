"""The spool of a run: what was logged for it, as JSON lines, until MLflow has it.

A call that logs appends to a queue, from which a thread of its process writes twice a second to a
file of that process's own. The sender process (`sender_process.py`) reads these files and remembers
beside them how much of each MLflow has. So neither a slow server nor a lost one costs a training
step anything, and after kill -9 no more is missing than what the thread had not yet written.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any, Literal, TypedDict

from headrace.core.console import print_status
from headrace.core.files import append_whole

SPOOL = "experiment"
"""The folder of a run's spool, within the run's."""
RUNNING = "RUNNING"
"""The status of a run that has not ended."""
FINISHED = "FINISHED"
ENDS = (FINISHED, "FAILED", "KILLED")
"""The statuses of runs that have, as MLflow has them."""
_SUFFIX = ".jsonl"
_WRITE_EVERY_S = 0.5
_EXIT_PRIORITY = 10  # of the finalizer at a process's end
_MOST_WAITING = 1_000_000  # entries, where the disk takes none
_HALF_CHARACTER = rb"\ud"
"""In JSON: of a character beyond 16 bits, or what stands for a byte that is no UTF-8."""
_PIECE = 1000  # entries that are written at once

Point = tuple[tuple[str, ...], tuple[float, ...], int, int]
"""A point of time series as it is logged most: names, values, the time in ns since 1970, step."""
Kind = Literal["params", "tags", "metrics", "summary", "artifact", "event_file", "status"]


class Entry(TypedDict, total=False):
    """What one call logs; `kind` and `at_ms` are in each entry.

    Attributes:
        kind: `metrics` is a point of time series, `summary` metrics of which only the last counts.
        at_ms: The time of the call, in ms since 1970.
        values: By name: texts of params and tags, numbers of metrics and of a summary.
        step: Of metrics; None: one more than the last step of each.
        attempt: Of metrics whose steps begin at 0 with each attempt: those of one attempt go on
            after the last step of the one before. Of an event file, the one that wrote it. Of a
            status, the job's that it is of.
        rank: Of the process that wrote an event file.
        restart: How often torchrun had restarted that, in its attempt.
        path: An artifact, a file or a folder; or an event file, which the script goes on writing.
        original: Where an artifact's copy was made of.
        folder: Where it goes among the run's artifacts, and of a folder what is in it; "": at the
            top, a folder by its own name.
        event_file: The event file that an entry was read from.
        events: How many of its events were read then.
        prefix: What the names of its series begin with.
        status: RUNNING, FINISHED, FAILED or KILLED, as MLflow has it: the run's from now on.
    """

    kind: Kind
    at_ms: int
    values: Mapping[str, Any]
    step: int | None
    attempt: int
    rank: int
    restart: int
    path: str
    original: str
    folder: str
    event_file: str
    events: int
    prefix: str
    status: str


def now_ms() -> int:
    """Return the time in ms since 1970, as MLflow counts it."""
    return time.time_ns() // 1_000_000


class SpoolWriter:
    """Writes what this process logs for a run to the run's spool.

    In a forked child it goes on with a file of its own; what the parent had not yet written stays
    the parent's.

    Args:
        folder: The spool, which is made at the first entry.

    Attributes:
        queue: Entries and points to be written; `add` appends to it.
        is_writing: Whether a thread writes what is appended.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue: deque[Entry | Point] = deque()
        self._begin()
        _WRITERS.append(self)

    def _begin(self) -> None:
        self.queue.clear()
        self._lock = threading.Lock()  # of the file
        self._descriptor: int | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._has_failed = False
        self._lost = 0  # entries
        self.is_writing = False

    def add(self, entry: Entry) -> None:
        """Log an entry; it is on disk within half a second."""
        self.queue.append(entry)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_until_closed, name="headrace-spool", daemon=True
            )
            self._thread.start()
            self.is_writing = True
            # Children of multiprocessing, which may train as ranks, do not run atexit.
            util.Finalize(None, self.close, exitpriority=_EXIT_PRIORITY)

    def flush(self) -> None:
        """Write what is queued now; where that fails, it stays queued, and it is reported once."""
        with self._lock:
            left = len(self.queue)
            while left:
                count = min(left, _PIECE)
                lines = [_line(self.queue[number]) for number in range(count)]
                try:
                    self._write("".join(lines).encode())
                except OSError as error:
                    self._failed(error)
                    return
                for _ in range(count):
                    self.queue.popleft()
                left -= count
                self._has_failed = False

    def close(self) -> None:
        """Write what is queued, and end the thread; what cannot be written is lost, and counted."""
        self._is_closed.set()
        self.flush()
        with self._lock:
            self._lost += len(self.queue)
            self.queue.clear()
            if self._lost:
                print_status(
                    f"{self._lost} entries that the script logged are lost: {self.folder} could "
                    "not be written."
                )
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
        with suppress(ValueError):
            _WRITERS.remove(self)

    def _write_until_closed(self) -> None:
        while not self._is_closed.wait(_WRITE_EVERY_S):
            self.flush()

    def _write(self, data: bytes) -> None:
        if self._descriptor is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns()}-{os.getpid()}{_SUFFIX}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.folder / name, flags, 0o600)
        append_whole(self._descriptor, data)

    def _failed(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            print_status(
                f"what the script logs cannot be written to {self.folder} now: "
                f"{error.strerror or error}; it is kept in memory until that works."
            )
        while len(self.queue) > _MOST_WAITING:
            self.queue.popleft()
            self._lost += 1


_WRITERS: list[SpoolWriter] = []


def _line(queued: Entry | Point) -> str:
    """Return an entry's line; "" where a device cannot tell the number of a tensor any more."""
    entry = _entry_of(queued) if isinstance(queued, tuple) else queued
    values = entry.get("values", {})
    try:
        if entry["kind"] in {"metrics", "summary"}:
            entry = {**entry, "values": {name: float(value) for name, value in values.items()}}
        return json.dumps(entry) + "\n"
    except Exception as error:  # noqa: BLE001 - such as a device that has failed
        print_status(f"{', '.join(map(str, values)) or entry['kind']}: not logged: {error}")
        return ""


def _entry_of(point: Point) -> Entry:
    names, numbers, at_ns, step = point
    values = dict(zip(names, numbers, strict=False))
    return {"kind": "metrics", "at_ms": at_ns // 1_000_000, "values": values, "step": step}


def _begin_again() -> None:
    for writer in _WRITERS:
        writer._begin()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_begin_again)


def spool_files(folder: Path) -> list[Path]:
    """Return the files of a spool, the oldest first."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def read_spool(
    folder: Path, offsets: Mapping[str, int], most_bytes: int = 1 << 20
) -> Iterator[tuple[list[Entry], dict[str, int]]]:
    """Yield the entries beyond `offsets`, in pieces, each with the offsets after it.

    Offsets are by file; an unfinished last line is left for later. Raises OSError.
    """
    offsets = dict(offsets)
    for path in spool_files(folder):
        with path.open("rb") as file:
            file.seek(offsets.get(path.name, 0))
            while lines := file.readlines(most_bytes):
                is_unfinished = not lines[-1].endswith(b"\n")
                if is_unfinished:
                    lines.pop()
                if lines:
                    offsets[path.name] = offsets.get(path.name, 0) + sum(map(len, lines))
                    yield list(_entries(path, lines)), dict(offsets)
                if is_unfinished:  # what follows its part was written since, and is read with it
                    break


def encodable(text: str) -> str:
    """Return a text without what UTF-8 cannot have, such as parts of a file's name."""
    return text.encode(errors="replace").decode()


def _entries(path: Path, lines: list[bytes]) -> Iterator[Entry]:
    for line in lines:
        try:
            entry: Entry = json.loads(line)
        except ValueError:  # a power cut may leave what was never written
            print_status(f"{path}: a line of {len(line)} bytes is damaged, and left out")
            continue
        if _HALF_CHARACTER in line and "values" in entry:
            entry["values"] = {
                encodable(name): encodable(value) if isinstance(value, str) else value
                for name, value in entry["values"].items()
            }
        yield entry
