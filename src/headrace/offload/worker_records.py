"""Records of workers on auxiliary hosts, sent from the rings of their server to the rank.

Workers on an auxiliary host record as on the rank's host, into rings in a temporary folder of the
server session. The session reads these and sends the rows to the rank's proxy, which writes them.
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
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.offload.proxy_records import SENT_TABLES
from headrace.records.layout import RINGS
from headrace.records.live_switch import LiveSwitch, create_live_switch
from headrace.records.ring import SUFFIX, RingReader

_SEND_INTERVAL_S = 1.0
_SYSTEM_INTERVAL_S = 1.0  # of system metrics, which nobody samples here


class WorkerRecords:
    """The records of a server session's workers, in a temporary folder that `close` removes."""

    def __init__(self, loader: int, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="records-", dir=folder))
        (self._folder / RINGS).mkdir()
        self._switch: LiveSwitch = create_live_switch(self._folder, interval_s=_SYSTEM_INTERVAL_S)
        self._loader = loader
        self._readers: dict[str, RingReader] = {}
        self._last_read_s = time.monotonic()

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which workers record here."""
        return {
            env.RECORDS_DIR.name: str(self._folder),
            env.LOADER.name: str(self._loader),
            env.PYTHONPATH.name: env.pythonpath_with(SITECUSTOMIZE_DIR),
        }

    def turn(self, *, on: bool) -> None:
        """Turn the workers' recording on or off."""
        self._switch.on = on

    def due(self, *, at_once: bool = False) -> bytes | None:
        """Return new rows for `parse_rows`, once a second or `at_once`; None if there are none."""
        now_s = time.monotonic()
        if now_s - self._last_read_s < _SEND_INTERVAL_S and not at_once:
            return None
        self._last_read_s = now_s
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
                with suppress(RecordsError, OSError):  # it is being made: found next time
                    self._readers[name] = RingReader(self._folder / RINGS / name)

    def _rows(self, name: str) -> list[tuple[int, list[object]]]:
        reader = self._readers[name]
        has_ended = reader.ended  # before reading: then all its rows are read
        rows: list[tuple[int, list[object]]] = []
        with suppress(RecordsError):  # damaged: the rows before that are sent
            rows.extend(
                (table.number, list(values))
                for table, values in reader.rows()
                if table in SENT_TABLES
            )
        if reader.usable:
            reader.release()
        if has_ended or not reader.usable:
            reader.close()
            del self._readers[name]
            (self._folder / RINGS / name).unlink(missing_ok=True)
        return rows
