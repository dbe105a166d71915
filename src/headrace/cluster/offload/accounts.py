"""What auxiliary hosts did for a loader, in the records of its rank."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from headrace.cluster.offload.recorded import rows_told
from headrace.core import env
from headrace.core.errors import RecordsError
from headrace.records.layout import RINGS
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
from headrace.records.switch import Switch

_TABLES = {BATCHES.number: AUXILIARY_BATCHES, TRANSFORMS.number: AUXILIARY_TRANSFORMS}
_PLACES = {
    number: {name: table.columns.index(name) for name in ("rank", "loader", "start_ns")}
    for number, table in _TABLES.items()
}
_KNOWN_WAYS = 60
_EVENT_AT, _EVENT_TEXT = EVENTS.columns.index("at_ns"), EVENTS.columns.index("text")


class Accounts:
    """Writes rows into a ring of the rank's records folder, where this process was told of one.

    Args:
        rank: The rank.

    Attributes:
        loader: The loader's number in the rank; None where nothing is recorded.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._writer: RingWriter | None = None
        self._switch: Switch | None = None
        self._has_begun = self._is_begun_told = False
        self._misunderstood: set[str] = set()
        self._cores: dict[str, int] = {}
        self._cores_told: dict[str, int] = {}  # as the records have them
        # How far hosts' clocks are behind this one's, by their last messages.
        self._behind_ns: dict[str, deque[int]] = {}
        self.loader: int | None = None
        folder = env.RECORDS_DIR.get()
        if folder:
            with suppress(RecordsError):  # --profile off, or the attempt is over
                self._folder = Path(folder)
                self._switch = Switch(self._folder)
                self.loader = env.LOADER.get_int(-1)

    @property
    def on(self) -> bool:
        """Whether it records now."""
        return self._switch is not None and self._switch.on

    def begun(self) -> None:
        """Note that hosts may make batches of the loader."""
        self._has_begun = True
        self.catch_up()

    def cores_of(self, host: str, cores: int) -> None:
        """Note how many of a host's cores the loader may count on; 0: the host is lost."""
        self._cores[host] = cores
        self.catch_up()
        if not cores:
            self._behind_ns.pop(host, None)  # it may come back as another machine

    def catch_up(self) -> None:
        """Write what came about while nothing was recorded; to be called often."""
        if not self.on:
            return
        if self._has_begun and not self._is_begun_told:
            number = float(self.loader or 0)
            self._is_begun_told = self._write_event("auxiliary-loader", "", number)
        for host, cores in self._cores.items():
            if self._cores_told.get(host, 0) != cores:
                told = f"{self.loader}/{host}"
                if self._write_event("auxiliary-cores", told, float(cores)):
                    self._cores_told[host] = cores

    def _write_event(self, kind: str, text: str, value: float) -> bool:
        return self._write(EVENTS, self._rank, time.monotonic_ns(), kind, text, value)

    def arrived(
        self, host: str, worker: int, *, asked_s: float, began_s: float, queued_ns: int,
        making_ns: int, size_bytes: int, counted: bool,
    ) -> None:  # fmt: skip
        """Note that a batch has arrived; moments are of `time.monotonic`."""
        if not self.on:
            return
        now_s = time.monotonic()
        self._write(
            ARRIVALS, self._rank, self.loader, host, worker, round(asked_s * 1e9),
            round((now_s - asked_s) * 1e9), queued_ns, making_ns, round((now_s - began_s) * 1e9),
            size_bytes, int(counted),
        )  # fmt: skip

    def add(self, host: str, body: bytes) -> None:
        """Add what a host's workers recorded; what another version has sent is left out."""
        try:
            host_ns, rows = rows_told(body)
        except ValueError as error:
            if self.on and host not in self._misunderstood:
                self._misunderstood.add(host)
                self._write_event("probe-fault", f"{host}: {error}", 0.0)
            return
        known = self._behind_ns.setdefault(host, deque(maxlen=_KNOWN_WAYS))
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
            places = _PLACES[number]
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
