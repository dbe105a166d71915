"""The live switch of an attempt: a small mapped file that turns recording on, off or deep.

Layout, little-endian: mode (1 byte: 0 off, 1 on), 7 unused; the time between samples of the system
(ns, q); until when recording is deep, by the host's monotonic clock (ns, q); how often deep
recording was requested (q).
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import RecordsError

SWITCH_FILE = "switch"
_SIZE = 64
_INTERVAL, _DEEP_UNTIL, _DEEP_COUNT = 1, 2, 3  # indexes of 8-byte numbers


@dataclass(frozen=True, slots=True)
class SwitchState:
    """What a switch is set to, for that of another host."""

    on: bool
    interval_s: float
    deep_s: float  # how long recording is still deep; 0: it is not
    deep_count: int


class LiveSwitch:
    """The open switch of an attempt's records folder; raises RecordsError if it has none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SWITCH_FILE
        try:
            with self._path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _SIZE)
            # It writes 8 bytes at once; struct.pack_into sets them to zero first, for all to see.
            self._numbers = memoryview(self._map).cast("q")
            self.mode = memoryview(self._map)[:1]  # 0 where processes do not record
        except (OSError, ValueError) as error:
            raise RecordsError(
                f"{folder} has no switch: the attempt was started with --profile off, or is over."
            ) from error

    @property
    def on(self) -> bool:
        """Whether processes record."""
        return self.mode[0] != 0

    @on.setter
    def on(self, value: bool) -> None:
        self.mode[0] = int(value)

    @property
    def interval_s(self) -> float:
        """Seconds between samples of the system."""
        return self._numbers[_INTERVAL] / 1e9

    @interval_s.setter
    def interval_s(self, value: float) -> None:
        self._numbers[_INTERVAL] = round(value * 1e9)

    @property
    def deep(self) -> bool:
        """Whether processes record deeply now."""
        until_ns = self._numbers[_DEEP_UNTIL]
        return until_ns > 0 and time.monotonic_ns() < until_ns

    @property
    def deep_count(self) -> int:
        """How often deep recording was requested."""
        return self._numbers[_DEEP_COUNT]

    def go_deep(self, seconds: float) -> None:
        """Have processes record deeply for some seconds from now."""
        self._numbers[_DEEP_UNTIL] = time.monotonic_ns() + round(seconds * 1e9)
        self._numbers[_DEEP_COUNT] += 1

    def end_deep(self) -> None:
        """End deep recording."""
        self._numbers[_DEEP_UNTIL] = 0

    @property
    def state(self) -> SwitchState:
        """What it is set to now."""
        left_s = max(self._numbers[_DEEP_UNTIL] - time.monotonic_ns(), 0) / 1e9
        return SwitchState(self.on, self.interval_s, left_s, self.deep_count)

    @state.setter
    def state(self, state: SwitchState) -> None:
        self.interval_s = state.interval_s
        until_ns = time.monotonic_ns() + round(state.deep_s * 1e9)
        self._numbers[_DEEP_UNTIL] = until_ns if state.deep_s > 0 else 0
        self._numbers[_DEEP_COUNT] = state.deep_count
        self.on = state.on

    def remove(self) -> None:
        """Remove the file at the attempt's end: processes that start later do not record."""
        self._path.unlink(missing_ok=True)


def create_live_switch(folder: Path, *, interval_s: float) -> LiveSwitch:
    """Create the switch of an attempt, turned on."""
    path = folder / SWITCH_FILE
    path.touch(mode=0o600)
    path.write_bytes(bytes(_SIZE))
    switch = LiveSwitch(folder)
    switch.interval_s = interval_s
    switch.on = True
    return switch
