"""Records of workers on auxiliary hosts: from the server's rings to those of the rank.

Workers record there as they do on the rank's host, into rings in a folder of that host's own; the
server session reads those and sends the rows along with batches.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.errors import RecordsError
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.records.layout import RINGS
from headrace.records.live_switch import LiveSwitch, create_live_switch
from headrace.records.ring import SUFFIX, RingReader, RingWriter
from headrace.records.schema import (
    ARRIVALS,
    AUXILIARY_BATCHES,
    AUXILIARY_TRANSFORMS,
    BATCHES,
    EVENTS,
    TRANSFORMS,
    Table,
)

_SEND_INTERVAL_S = 1.0
_SYSTEM_INTERVAL_S = 1.0  # of samples of the system, which nobody takes here
_SENT_TABLES = (BATCHES, TRANSFORMS, EVENTS)


class WorkerRecords:
    """The records of a session's workers.

    Args:
        loader: The number of the loader that they work for.
        folder: Where a folder of its own is made, until `close`.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, loader: int, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="records-", dir=folder))
        (self._folder / RINGS).mkdir()
        self._switch: LiveSwitch = create_live_switch(self._folder, interval_s=_SYSTEM_INTERVAL_S)
        self._loader = loader
        self._readers: dict[str, RingReader] = {}
        self._read_s = time.monotonic()

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which workers record here."""
        return {
            env.RECORDS_DIR.name: str(self._folder),
            env.LOADER.name: str(self._loader),
            env.PYTHONPATH.name: env.pythonpath_with(SITECUSTOMIZE_DIR),
        }

    def turn(self, *, on: bool) -> None:
        """Have workers record from now on, or no more."""
        self._switch.on = on

    def due(self, *, at_once: bool = False) -> bytes | None:
        """Return what is to be sent now: `parse_rows` reads it; None: nothing.

        Args:
            at_once: What there is, however soon after the last time.
        """
        now_s = time.monotonic()
        if now_s - self._read_s < _SEND_INTERVAL_S and not at_once:
            return None
        self._read_s = now_s
        self._find_rings()
        rows = [row for name in list(self._readers) for row in self._rows(name)]
        if not rows:
            return None
        return json.dumps({"now_ns": time.monotonic_ns(), "rows": rows}).encode()

    def close(self) -> None:
        """Remove the folder; the workers have ended."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _find_rings(self) -> None:
        with os.scandir(self._folder / RINGS) as entries:
            names = [each.name for each in entries if each.name.endswith(SUFFIX)]
        for name in names:
            if name not in self._readers:
                with suppress(RecordsError, OSError):  # it is being made: the next look finds it
                    self._readers[name] = RingReader(self._folder / RINGS / name)

    def _rows(self, name: str) -> list[tuple[int, list[object]]]:
        reader = self._readers[name]
        has_ended = reader.ended  # asked first: what it holds is then all
        rows: list[tuple[int, list[object]]] = []
        with suppress(RecordsError):  # it is damaged: what was read until there is sent
            rows.extend(
                (table.number, list(values))
                for table, values in reader.rows()
                if table in _SENT_TABLES
            )
        if reader.usable:
            reader.release()
        if has_ended or not reader.usable:
            reader.close()
            del self._readers[name]
            (self._folder / RINGS / name).unlink(missing_ok=True)
        return rows


def parse_rows(body: bytes) -> tuple[int, list[tuple[int, list[object]]]]:
    """Return the sender's clock in nanoseconds, and rows by their tables' numbers.

    Raises:
        ValueError: `WorkerRecords` has not written this.
    """
    told = json.loads(body)
    columns = {table.number: len(table.fields) for table in _SENT_TABLES}
    if (
        not isinstance(told, dict)
        or told.keys() != {"now_ns", "rows"}
        or any(columns.get(number) != len(values) for number, values in told["rows"])
    ):
        raise ValueError("its rows are not those of this version of Headrace")
    return told["now_ns"], told["rows"]


_TABLES = {BATCHES.number: AUXILIARY_BATCHES, TRANSFORMS.number: AUXILIARY_TRANSFORMS}
_COLUMN_INDEXES = {
    number: {name: table.columns.index(name) for name in ("rank", "loader", "start_ns")}
    for number, table in _TABLES.items()
}
_CLOCK_SAMPLES = 60
_EVENT_AT, _EVENT_TEXT = EVENTS.columns.index("at_ns"), EVENTS.columns.index("text")


class OffloadRecorder:
    """Writes rows into a ring of the rank's records folder, where this process was told of one.

    Args:
        rank: The rank.

    Attributes:
        loader: The loader's number in the rank; None where nothing is recorded.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._writer: RingWriter | None = None
        self._switch: LiveSwitch | None = None
        self._has_begun = self._is_start_recorded = False
        self._misunderstood: set[str] = set()
        self._cores: dict[str, int] = {}
        self._recorded_cores: dict[str, int] = {}  # as the records have them
        # How far hosts' clocks are behind this one's, by their last messages.
        self._behind_ns: dict[str, deque[int]] = {}
        self.loader: int | None = None
        folder = env.RECORDS_DIR.get()
        if folder:
            with suppress(RecordsError):  # --profile off, or the attempt is over
                self._folder = Path(folder)
                self._switch = LiveSwitch(self._folder)
                self.loader = env.LOADER.get_int(-1)

    @property
    def on(self) -> bool:
        """Whether it records now."""
        return self._switch is not None and self._switch.on

    def begun(self) -> None:
        """Note that hosts may make batches of the loader."""
        self._has_begun = True
        self.catch_up()

    def note_cores(self, host: str, cores: int) -> None:
        """Note how many of a host's cores the loader may count on; 0: the host is lost."""
        self._cores[host] = cores
        self.catch_up()
        if not cores:
            self._behind_ns.pop(host, None)  # it may come back as another machine

    def catch_up(self) -> None:
        """Write what came about while nothing was recorded; to be called often."""
        if not self.on:
            return
        if self._has_begun and not self._is_start_recorded:
            number = float(self.loader or 0)
            self._is_start_recorded = self._write_event("auxiliary-loader", "", number)
        for host, cores in self._cores.items():
            if self._recorded_cores.get(host, 0) != cores:
                told = f"{self.loader}/{host}"
                if self._write_event("auxiliary-cores", told, float(cores)):
                    self._recorded_cores[host] = cores

    def _write_event(self, kind: str, text: str, value: float) -> bool:
        return self._write(EVENTS, self._rank, time.monotonic_ns(), kind, text, value)

    def arrived(
        self, host: str, worker: int, *, requested_s: float, began_s: float, queued_ns: int,
        making_ns: int, size_bytes: int, counted: bool,
    ) -> None:  # fmt: skip
        """Note that a batch has arrived; moments are of `time.monotonic`."""
        if not self.on:
            return
        now_s = time.monotonic()
        self._write(
            ARRIVALS,
            self._rank,
            self.loader,
            host,
            worker,
            round(requested_s * 1e9),
            round((now_s - requested_s) * 1e9),
            queued_ns,
            making_ns,
            round((now_s - began_s) * 1e9),
            size_bytes,
            int(counted),
        )

    def add(self, host: str, body: bytes) -> None:
        """Add what a host's workers recorded; what another version has sent is left out."""
        try:
            host_ns, rows = parse_rows(body)
        except ValueError as error:
            if self.on and host not in self._misunderstood:
                self._misunderstood.add(host)
                self._write_event("probe-fault", f"{host}: {error}", 0.0)
            return
        known = self._behind_ns.setdefault(host, deque(maxlen=_CLOCK_SAMPLES))
        known.append(time.monotonic_ns() - host_ns)
        behind_ns = min(known)  # the quickest message says most: others were longer on their way
        if not self.on:
            return
        for number, values in rows:
            if number == EVENTS.number:
                values[0] = self._rank
                values[_EVENT_AT] += behind_ns  # type: ignore[operator]
                values[_EVENT_TEXT] = f"{host}: {values[_EVENT_TEXT]}"
                self._write(EVENTS, *values)
                continue
            places = _COLUMN_INDEXES[number]
            values[places["rank"]], values[places["loader"]] = self._rank, self.loader
            values[places["start_ns"]] += behind_ns  # type: ignore[operator]
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
