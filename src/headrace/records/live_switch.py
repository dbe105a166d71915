"""The live switch of an attempt: a small mapped file that turns recording on, off or deep.

Layout, little-endian: mode (1 byte: 0 off, 1 on), 7 unused; the time between samples of the system
(ns, q); until when recording is deep, by the host's monotonic clock (ns, q); how often deep
recording was requested (q).
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

from headrace.core.errors import RecordsError

SWITCH_FILE = "switch"
_SIZE = 64
_NUMBER = struct.Struct("<q")
_INTERVAL_AT, _DEEP_UNTIL_AT, _DEEP_COUNT_AT = 8, 16, 24


class LiveSwitch:
    """The open switch of an attempt's records folder; raises RecordsError if it has none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SWITCH_FILE
        try:
            with self._path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _SIZE)
        except (OSError, ValueError) as error:
            raise RecordsError(
                f"{folder} has no switch: the attempt was started with --profile off, or is over."
            ) from error

    @property
    def on(self) -> bool:
        """Whether processes record."""
        return self._map[0] != 0

    @on.setter
    def on(self, value: bool) -> None:
        self._map[0] = int(value)

    @property
    def interval_s(self) -> float:
        """Seconds between samples of the system."""
        return self._get(_INTERVAL_AT) / 1e9

    @interval_s.setter
    def interval_s(self, value: float) -> None:
        _NUMBER.pack_into(self._map, _INTERVAL_AT, round(value * 1e9))

    @property
    def deep(self) -> bool:
        """Whether processes record deeply now."""
        until_ns = self._get(_DEEP_UNTIL_AT)
        return until_ns > 0 and time.monotonic_ns() < until_ns

    @property
    def deep_count(self) -> int:
        """How often deep recording was requested."""
        return self._get(_DEEP_COUNT_AT)

    def go_deep(self, seconds: float) -> None:
        """Have processes record deeply for some seconds from now."""
        until_ns = time.monotonic_ns() + round(seconds * 1e9)
        _NUMBER.pack_into(self._map, _DEEP_UNTIL_AT, until_ns)
        _NUMBER.pack_into(self._map, _DEEP_COUNT_AT, self.deep_count + 1)

    def end_deep(self) -> None:
        """End deep recording."""
        _NUMBER.pack_into(self._map, _DEEP_UNTIL_AT, 0)

    def remove(self) -> None:
        """Remove the file at the attempt's end: processes that start later do not record."""
        self._path.unlink(missing_ok=True)

    def _get(self, at: int) -> int:
        number: int = _NUMBER.unpack_from(self._map, at)[0]
        return number


def create_live_switch(folder: Path, *, interval_s: float) -> LiveSwitch:
    """Create the switch of an attempt, turned on."""
    path = folder / SWITCH_FILE
    path.touch(mode=0o600)
    path.write_bytes(bytes(_SIZE))
    switch = LiveSwitch(folder)
    switch.interval_s = interval_s
    switch.on = True
    return switch
