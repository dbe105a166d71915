"""Records of a proxy in a ring of its rank: rows of workers elsewhere, hosts' shares, arrivals."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.errors import RecordsError
from headrace.records.layout import RINGS
from headrace.records.live_switch import LiveSwitch
from headrace.records.ring import SUFFIX, RingWriter
from headrace.records.schema import (
    ARRIVALS,
    AUXILIARY_BATCHES,
    AUXILIARY_TRANSFORMS,
    BATCHES,
    EVENTS,
    TRANSFORMS,
    Table,
)

SENT_TABLES = (BATCHES, TRANSFORMS, EVENTS)
"""The tables whose rows a server sends."""


def parse_rows(body: bytes) -> tuple[int, list[tuple[int, list[object]]]]:
    """Return the sender's monotonic clock in nanoseconds, and rows with their tables' numbers.

    Raises ValueError for a body that is not from `WorkerRecords` of this version.
    """
    message = json.loads(body)
    columns = {table.number: len(table.fields) for table in SENT_TABLES}
    if (
        not isinstance(message, dict)
        or message.keys() != {"now_ns", "rows"}
        or any(columns.get(number) != len(values) for number, values in message["rows"])
    ):
        raise ValueError("its rows are not those of this version of Headrace")
    return message["now_ns"], message["rows"]


_TABLES = {BATCHES.number: AUXILIARY_BATCHES, TRANSFORMS.number: AUXILIARY_TRANSFORMS}
_COLUMN_INDEXES = {
    number: {name: table.columns.index(name) for name in ("rank", "loader", "start_ns")}
    for number, table in _TABLES.items()
}
_CLOCK_SAMPLES = 60
_EVENT_AT, _EVENT_TEXT = EVENTS.columns.index("at_ns"), EVENTS.columns.index("text")


class OffloadRecorder:
    """The proxy's recorder into a ring of the rank's records folder, if the job records."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._writer: RingWriter | None = None
        self._switch: LiveSwitch | None = None
        self._has_begun = self._is_start_recorded = False
        self._incompatible_hosts: set[str] = set()
        self._cores: dict[str, int] = {}
        self._recorded_cores: dict[str, int] = {}  # as written to the ring
        # How far hosts' clocks are behind this one, plus latency, by their last messages.
        self._clock_offsets_ns: dict[str, deque[int]] = {}
        self.loader: int | None = None  # the probe's number; None if the job does not record
        folder = env.RECORDS_DIR.get()
        if folder:
            with suppress(RecordsError):  # with --profile off, or after the attempt
                self._folder = Path(folder)
                self._switch = LiveSwitch(self._folder)
                self.loader = env.LOADER.get_int(-1)

    @property
    def on(self) -> bool:
        """Whether it records now."""
        return self._switch is not None and self._switch.on

    def begun(self) -> None:
        """Note that the loader uses auxiliary hosts."""
        self._has_begun = True
        self.catch_up()

    def note_cores(self, host: str, cores: int) -> None:
        """Note the loader's share of a host's cores; 0 if the host is lost."""
        self._cores[host] = cores
        self.catch_up()
        if not cores:
            self._clock_offsets_ns.pop(host, None)  # it may come back as another machine

    def catch_up(self) -> None:
        """Write changes that happened while recording was off; to be called often."""
        if not self.on:
            return
        if self._has_begun and not self._is_start_recorded:
            number = float(self.loader or 0)
            self._is_start_recorded = self._write_event("auxiliary-loader", "", number)
        for host, cores in self._cores.items():
            if self._recorded_cores.get(host, 0) != cores:
                text = f"{self.loader}/{host}"
                if self._write_event("auxiliary-cores", text, float(cores)):
                    self._recorded_cores[host] = cores

    def _write_event(self, kind: str, text: str, value: float) -> bool:
        return self._write(EVENTS, self._rank, time.monotonic_ns(), kind, text, value)

    def write_arrival(
        self, host: str, worker: int, made: tuple[int, ...], *, counted: bool
    ) -> None:
        """Write the row of a batch that has arrived."""
        if self.on:
            self._write(ARRIVALS, self._rank, self.loader, host, worker, *made, int(counted))

    def add(self, host: str, body: bytes) -> None:
        """Record rows of a host's workers; those of another version are dropped."""
        try:
            host_ns, rows = parse_rows(body)
        except ValueError as error:
            if self.on and host not in self._incompatible_hosts:
                self._incompatible_hosts.add(host)
                self._write_event("probe-fault", f"{host}: {error}", 0.0)
            return
        offsets_ns = self._clock_offsets_ns.setdefault(host, deque(maxlen=_CLOCK_SAMPLES))
        offsets_ns.append(time.monotonic_ns() - host_ns)
        offset_ns = min(offsets_ns)  # that of the fastest message is the most exact
        if not self.on:
            return
        for number, values in rows:
            if number == EVENTS.number:
                values[0] = self._rank
                values[_EVENT_AT] += offset_ns  # type: ignore[operator]
                values[_EVENT_TEXT] = f"{host}: {values[_EVENT_TEXT]}"
                self._write(EVENTS, *values)
                continue
            columns = _COLUMN_INDEXES[number]
            values[columns["rank"]], values[columns["loader"]] = self._rank, self.loader
            values[columns["start_ns"]] += offset_ns  # type: ignore[operator]
            self._write(_TABLES[number], *values, host)

    def _write(self, table: Table, *values: object) -> bool:
        """Write a row; return whether there was room for it."""
        if self._writer is None:
            name = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}{SUFFIX}"
            try:
                self._writer = RingWriter(self._folder / RINGS / name)
            except OSError:  # no room, or the folder is gone: batches matter more
                self._switch = None
                return False
        return self._writer.write(table, *values)  # type: ignore[arg-type]


class ArrivalRows:
    """The rows of batches that have arrived, written once the rank has taken their answers in.

    Only then it is known whether a batch counts: one that was long in coming may have been made in
    the rank meanwhile.
    """

    def __init__(self, recorder: OffloadRecorder) -> None:
        self._recorder = recorder
        # Tasks in the order of their answers, with host, worker and numbers of an arrival.
        self._answered: deque[tuple[int, tuple[str, int, tuple[int, ...]] | None]] = deque()
        self._confirmed = 0  # answers of which the rank has said that it took them in
        self._discarded: set[int] = set()

    def add(
        self, task: int | None, host: str, worker: int, *, requested_s: float, began_s: float,
        queued_ns: int, making_ns: int, size_bytes: int,
    ) -> None:  # fmt: skip
        """Add the arrival of a task's batch, None if nobody needs it; times are monotonic."""
        now_s = time.monotonic()
        wall_ns, receive_ns = round((now_s - requested_s) * 1e9), round((now_s - began_s) * 1e9)
        made = round(requested_s * 1e9), wall_ns, queued_ns, making_ns, receive_ns, size_bytes
        if task is None:
            self._recorder.write_arrival(host, worker, made, counted=False)
        else:
            self._answered.append((task, (host, worker, made)))

    def add_unrecorded(self, task: int) -> None:
        """Add an answer of another kind than a batch."""
        self._answered.append((task, None))

    def discard(self, task: int) -> None:
        """Note that the rank did not need a task's batch."""
        self._discarded.add(task)

    def confirm(self, noted: int) -> None:
        """Write the arrivals among the first `noted` answers, which the rank has taken in."""
        while self._confirmed < noted and self._answered:
            self._confirmed += 1
            task, arrival = self._answered.popleft()
            if arrival is not None:
                self._recorder.write_arrival(*arrival, counted=task not in self._discarded)
            self._discarded.discard(task)

    def reject_rest(self) -> None:
        """Write the other arrivals as not counted: the rank drops their answers, or has ended."""
        for _, arrival in self._answered:
            if arrival is not None:
                self._recorder.write_arrival(*arrival, counted=False)
        self._answered.clear()
        self._discarded.clear()
        self._confirmed = 0
