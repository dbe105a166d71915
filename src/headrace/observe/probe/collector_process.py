"""The collector process of a host: drains the rings of its processes and samples the host.

On a host whose records another one keeps it fills an outbox (records/outbox.py), not a store. It is
a sidecar of the launcher, and ends, with all records closed, when its input is closed (by the
launcher, or because the launcher died), when it is no longer a child of the launcher, or on
SIGTERM. It ignores Ctrl-C, because the ranks record until they have ended. A launcher that says so
in its last message closes the records itself.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.core.files import raise_open_file_limit
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.observe.probe.process_cores import ProcessCores
from headrace.observe.probe.process_usage import ProcessUsage, with_children
from headrace.observe.probe.system_metrics import SystemSampler
from headrace.records.collector import EXIT_CODE, LEAVES_STORE, Collector, fault_row
from headrace.records.host_place import HostPlace
from headrace.records.live_switch import LiveSwitch
from headrace.records.outbox import OutboxStore
from headrace.records.schema import (
    EVENTS,
    HOSTS,
    PROCESS_CORES,
    PROCESS_USAGE,
    SCRIPT_ENDED,
)
from headrace.records.store import RecordStore

_DRAIN_S = 0.5  # `live_reader.py` counts on it


class CollectorProcess:
    """Drains the rings and samples the host until the launcher, its parent, ends it."""

    def __init__(self, folder: Path, place: HostPlace, parent: SidecarParent) -> None:
        self._host = socket.gethostname()
        self._place = place
        self._switch = LiveSwitch(folder)
        self._parent = parent
        self._collector = Collector(
            folder, self._host, open_store=OutboxStore if place.is_elsewhere else RecordStore
        )
        self._sampler = SystemSampler()
        self._processes = ProcessUsage()
        self._process_cores = ProcessCores()
        self._faults = 0
        self._samples_lost = 0
        self._was_on = True
        store = self._collector.store
        store.declare_system(self._sampler.columns)
        if store.is_empty(HOSTS):  # otherwise this one replaces a collector that was killed
            self._collector.add(HOSTS, [self._row()])
        self._collector.drain()

    def run(self, wake: int) -> bool:
        """Collect until the end, and return whether the launcher's input ended it.

        `wake` is a file descriptor that becomes readable on SIGTERM.
        """
        now_s = time.monotonic()
        drain_s, sample_s = now_s + _DRAIN_S, now_s + self._switch.interval_s
        watched = [self._parent.fileno(), wake]
        while os.getppid() == self._parent.pid:
            pause_s = max(0.0, min(drain_s, sample_s) - time.monotonic())
            readable, _, _ = select.select(watched, [], [], pause_s)
            if readable:
                return self._parent.fileno() in readable
            now_s = time.monotonic()
            # The interval may have been shortened meanwhile.
            sample_s = min(sample_s, now_s + self._switch.interval_s)
            if now_s >= sample_s:
                if self._switch.on:
                    self._sample()
                sample_s = max(sample_s + self._switch.interval_s, now_s)
            if now_s >= drain_s:
                self._note_switch()
                self._drain()
                drain_s = max(drain_s + _DRAIN_S, now_s)
        return False

    def note_end(self, exit_code: int | None) -> None:
        """Record that the script has ended, if it has done so without an error.

        A rank that ends by `os._exit` closes no records: by these alone it would seem to hang.
        """
        if exit_code == 0:
            text = "the script has ended without an error"
            self._collector.add(EVENTS, [(-1, time.monotonic_ns(), SCRIPT_ENDED, text, 0.0)])

    def close(self, *, leaves_store: bool) -> None:
        """Take the last sample and close the records; raises OSError or sqlite3.Error."""
        self._sample()
        if self._faults:
            text = f"records could not be stored {self._faults} times; rings may have run full"
            self._collector.add(EVENTS, [fault_row(text)])
        if self._samples_lost:
            text = f"samples of the host could not be taken {self._samples_lost} times"
            self._collector.add(EVENTS, [fault_row(text)])
        self._collector.close(leaves_store=leaves_store)
        self._switch.remove()

    def _row(self) -> tuple[Any, ...]:
        limits, place = self._sampler.limits, self._place
        offset_ns = time.time_ns() - time.monotonic_ns()
        return (
            place.name or self._host, limits.cores, limits.memory_bytes, offset_ns, place.attempt,
            place.number, place.group,
        )  # fmt: skip

    def _sample(self) -> None:
        """Take a sample of the host; a failure costs only this sample."""
        try:
            self._take_sample()
        except Exception as error:  # noqa: BLE001 - kernels and drivers differ; draining goes on
            if not self._samples_lost:
                print(f"headrace: the host was not sampled: {error!r}", file=sys.stderr)  # noqa: T201
            self._samples_lost += 1

    def _take_sample(self) -> None:
        self._collector.add_system(self._sampler.columns, self._sampler.sample())
        recorded = self._collector.take_pids()
        usage = self._processes.rows(with_children(recorded))
        if usage:
            self._collector.add(PROCESS_USAGE, usage)
        cores = self._process_cores.rows(recorded)
        if cores:
            self._collector.add(PROCESS_CORES, cores)

    def _note_switch(self) -> None:
        """Record that recording was switched off, or on again."""
        is_on = self._switch.on
        if is_on != self._was_on:
            state = "on" if is_on else "off"
            # Of the whole job the launcher's host says so.
            kind = "host-switched" if self._place.is_elsewhere else "switched"
            text = f"{state}: {self._place.name}" if self._place.is_elsewhere else state
            self._collector.add(EVENTS, [(-1, time.monotonic_ns(), kind, text, 0.0)])
            self._was_on = is_on

    def _drain(self) -> None:
        try:
            self._collector.drain()
        except Exception as error:  # noqa: BLE001 - e.g. a full disk; the rings keep their rows
            if not self._faults:
                print(f"headrace: records cannot be stored: {error}", file=sys.stderr)  # noqa: T201
            self._faults += 1


def main(parent: SidecarParent) -> int:
    """Run the process; returns 1 where the records could not be collected or closed."""
    folder = Path(parent.request["folder"])
    wake = _wake_on_sigterm()
    raise_open_file_limit()  # each ring is one open file
    try:
        process = CollectorProcess(folder, HostPlace(**parent.request["place"]), parent)
        last = (parent.read() if process.run(wake) else None) or {}
        process.note_end(last.get(EXIT_CODE))
        process.close(leaves_store=LEAVES_STORE in last)
    except (HeadraceError, OSError, sqlite3.Error) as error:
        print(f"headrace: the records in {folder}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _wake_on_sigterm() -> int:
    """Return a file descriptor that becomes readable on SIGTERM, which was blocked so far."""
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # they would wake it, too
        signal.signal(number, signal.SIG_IGN)
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return readable


if __name__ == "__main__":
    run_sidecar(main, dies_by=None, blocked={signal.SIGTERM})
