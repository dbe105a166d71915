"""What the workers of one session record, on its way to the rank that they work for.

They record as workers beside the rank do, into rings in a folder of this host's own; the session
reads those and sends the rows along with batches.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.errors import RecordsError
from headrace.core.places import SITE
from headrace.records.layout import RINGS
from headrace.records.ring import SUFFIX, RingReader
from headrace.records.schema import BATCHES, EVENTS, TRANSFORMS
from headrace.records.switch import Switch, make_switch

_EVERY_S = 1.0
_INTERVAL_S = 1.0  # of samples of the system, which nobody takes here
_SENT = (BATCHES, TRANSFORMS, EVENTS)


class RecordedWorkers:
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
        self._switch: Switch = make_switch(self._folder, interval_s=_INTERVAL_S)
        self._loader = loader
        self._readers: dict[str, RingReader] = {}
        self._read_s = time.monotonic()

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which workers record here."""
        return {
            env.RECORDS_DIR.name: str(self._folder),
            env.LOADER.name: str(self._loader),
            env.PYTHONPATH.name: env.path_with(SITE),
        }

    def turn(self, *, on: bool) -> None:
        """Have workers record from now on, or no more."""
        self._switch.on = on

    def due(self, *, at_once: bool = False) -> bytes | None:
        """Return what is to be sent now: `rows_told` reads it; None: nothing.

        Args:
            at_once: What there is, however soon after the last time.
        """
        now_s = time.monotonic()
        if now_s - self._read_s < _EVERY_S and not at_once:
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
                (table.number, list(values)) for table, values in reader.rows() if table in _SENT
            )
        if reader.usable:
            reader.release()
        if has_ended or not reader.usable:
            reader.close()
            del self._readers[name]
            (self._folder / RINGS / name).unlink(missing_ok=True)
        return rows


def rows_told(body: bytes) -> tuple[int, list[tuple[int, list[object]]]]:
    """Return the sender's clock in nanoseconds, and rows by their tables' numbers.

    Raises:
        ValueError: `RecordedWorkers` has not written this.
    """
    told = json.loads(body)
    columns = {table.number: len(table.fields) for table in _SENT}
    if (
        not isinstance(told, dict)
        or told.keys() != {"now_ns", "rows"}
        or any(columns.get(number) != len(values) for number, values in told["rows"])
    ):
        raise ValueError("its rows are not those of this version of Headrace")
    return told["now_ns"], told["rows"]
