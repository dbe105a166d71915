"""Recorded runs on a device that is simulated, as there is none where the tests run.

A host puts work into a device's queue, which takes its time; both of the probe's own clocks are
notified of what happens, and what they record is written and closed by the records' own writer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from headrace.observe.probe.device_clock import DeviceClock, HostReport
from headrace.observe.probe.step_clock import StepClock
from headrace.observe.probe.step_segments import DeviceCopyCounts, RowKind, Segment
from headrace.records.collector import Collector
from headrace.records.ring import RingWriter
from headrace.records.schema import DEVICE_STEPS, STEPS, TABLES_BY_NAME
from run_tables import MS, SCRIPT
from simulated_device import Device

_MOST_QUEUED = 8  # launches that a device's queue holds; then who launches waits
_DEPTH = 2  # batches that lie ready at most


@dataclass(kw_only=True)
class Loop:
    """A training loop with a loader of one worker; times in milliseconds."""

    steps: int = 120
    batch_ms: float = 1.0  # the worker makes a batch
    take_ms: float = 0.05  # the script takes over one that lies ready
    copy_ms: float = 0.2  # the device copies one
    pinned: bool = True  # else the script waits for the copy
    launch_ms: float = 0.5  # the script launches forward, backward, and the optimizer's step
    forward_ms: float = 3.0  # the device computes them
    backward_ms: float = 6.0
    optimizer_ms: float = 1.0
    prints: bool = False  # the script waits for the loss after each step
    log_ms: float = 0.0  # and then is at something of its own
    gpu_percent: float | None = None
    cores: float = 8.0
    stacks: dict[str, str] = field(default_factory=dict)  # where the script stands, by phase
    with_device_rows: bool = True


class Machine(Device):
    """A host with a device: its clock is the host's too."""

    def __init__(self) -> None:
        super().__init__(now_ns=50 * MS)
        self._ends: deque[int] = deque()

    def spend(self, ms: float) -> None:
        self.now_ns += int(ms * MS)

    def launch(self, ms: float) -> None:
        while self._ends and self._ends[0] <= self.now_ns:
            self._ends.popleft()
        if len(self._ends) >= _MOST_QUEUED:
            self.now_ns = self._ends.popleft()
        self.done_ns = max(self.done_ns, self.now_ns) + int(ms * MS)
        self._ends.append(self.done_ns)

    def synchronize(self) -> None:
        self.now_ns = max(self.now_ns, self.done_ns)


class Recorder:
    """Plays a loop and writes what the probe would write of it."""

    def __init__(self, loop: Loop, rings: Path) -> None:
        self._loop = loop
        self._machine = Machine()
        self._writer = RingWriter(rings / "rank-0.ring")
        self._host = StepClock(self._step)
        self._device = DeviceClock(self._device_step, self._machine.event, Lock)
        self._ready: list[int] = []
        self._taken: list[int] = []
        self._spent_ns: dict[str, int] = {}

    def play(self) -> None:
        loop = self._loop
        self.row("hosts", host="here", cores=loop.cores, memory_bytes=2**36, attempt=1)
        self.row("processes", pid=100, role="rank", loader=-1, worker=-1, attempt=1)
        self.row("processes", pid=101, role="worker", attempt=1)
        self.row(
            "loaders", kind="torch", dataset="Faces", style="map", workers=1, batch_size=32,
            prefetch_factor=_DEPTH, pinned=int(loop.pinned), in_order=1, start_method="fork",
            file=SCRIPT, line=40,
        )  # fmt: skip
        for number in range(loop.steps):
            self._play_step(number)
        self._machine.synchronize()
        self._report(lambda clock, at_ns: clock.close(at_ns))
        self._device.poll()
        self._device.give_up()
        self._device.timed.settle()
        for phase, stack in loop.stacks.items():
            spent_ns = self._spent_ns[phase]
            self.row(
                "stacks", pid=100, loader=-1, worker=-1, phase=phase, stack=stack,
                start_ns=51 * MS, end_ns=self._machine.now_ns, samples=spent_ns // (20 * MS),
                wall_ns=spent_ns,
            )  # fmt: skip
        self._writer.close()

    def row(self, table: str, **values: float | str) -> None:
        zeros = {
            each.name: "" if each.kind == "text" else 0 for each in TABLES_BY_NAME[table].fields
        }
        assert values.keys() <= zeros.keys()
        assert self._writer.write(TABLES_BY_NAME[table], *(zeros | values).values())

    def _play_step(self, number: int) -> None:
        loop, machine = self._loop, self._machine
        self._report(lambda clock, at_ns: clock.fetch_began(0, at_ns, grad=True))
        self._fetch(number)
        self._report(lambda clock, at_ns: clock.fetch_ended(at_ns, 32, ended=False))
        self._report(lambda clock, at_ns: clock.within_began("copy", at_ns))
        machine.launch(loop.copy_ms)
        if not loop.pinned:
            machine.synchronize()
        slow = int(not loop.pinned)
        self._report(
            lambda clock, at_ns: clock.within_ended(at_ns, DeviceCopyCounts(1, slow, slow))
        )
        self._compute(loop.forward_ms)
        self._report(lambda clock, at_ns: clock.backward_began(at_ns))
        self._compute(loop.backward_ms)
        self._report(lambda clock, at_ns: clock.backward_ended(at_ns))
        self._report(lambda clock, at_ns: clock.optimizer_began(7, at_ns))
        self._compute(loop.optimizer_ms)
        self._report(lambda clock, at_ns: clock.optimizer_ended(7, at_ns))
        if loop.prints:
            machine.synchronize()
        machine.spend(loop.log_ms)

    def _compute(self, ms: float) -> None:
        self._machine.spend(self._loop.launch_ms)
        self._machine.launch(ms)

    def _fetch(self, number: int) -> None:
        """Wait for a batch; the worker makes one when fewer than so many lie ready."""
        began_ns = self._machine.now_ns
        free_ns = self._ready[-1] if self._ready else began_ns
        start_ns = max(free_ns, self._taken[number - _DEPTH] if number >= _DEPTH else free_ns)
        made_ns = int(self._loop.batch_ms * MS)
        self._ready.append(start_ns + made_ns)
        self.row(
            "batches", batch=number, start_ns=start_ns, wall_ns=made_ns, cpu_ns=made_ns,
            process_cpu_ns=made_ns, samples=32, idle_ns=start_ns - free_ns, reads=-1,
        )  # fmt: skip
        at_hand = self._ready[-1] <= began_ns
        self._machine.spend(self._loop.take_ms)
        self._machine.now_ns = max(self._machine.now_ns, self._ready[-1])
        self._taken.append(self._machine.now_ns)
        self.row(
            "fetches", batch=number, start_ns=began_ns, wait_ns=self._machine.now_ns - began_ns,
            ready=int(at_hand), receive_ns=-1, receive_cpu_ns=-1,
        )  # fmt: skip

    def _report(self, report: HostReport) -> None:
        self._device.report(report)
        report(self._host, self._machine.now_ns)

    def _step(self, kind: RowKind, number: int, segment: Segment) -> None:
        copies = segment.copies
        values = (
            0, number, kind, segment.loader, segment.start_ns, segment.wall_ns,
            *segment.times_ns(), segment.batches, segment.samples, int(segment.syncs > 0),
            copies.count, copies.pageable, copies.blocking,
        )  # fmt: skip
        assert self._writer.write(STEPS, *values)
        for phase, spent_ns in segment.phases_ns.items():
            self._spent_ns[phase] = self._spent_ns.get(phase, 0) + spent_ns
        self._device.poll()

    def _device_step(self, kind: RowKind, number: int, segment: Segment) -> None:
        if self._loop.with_device_rows:
            values = (0, number, kind, segment.wall_ns, *segment.times_ns())
            assert self._writer.write(DEVICE_STEPS, *values)


def record(run: Path, loop: Loop) -> Path:
    """Record a loop as a run that is over, and return the run's folder."""
    folder = run / "records" / "attempt-1"
    (folder / "rings").mkdir(parents=True)
    Recorder(loop, folder / "rings").play()
    collector = Collector(folder, "here")
    if loop.gpu_percent is not None:
        names = ("t_ns", "gpu_0_utilisation_percent")
        collector.store.declare_system(names)
        for t_ns in range(0, 10_000 * MS, 100 * MS):
            collector.add_system(names, (t_ns, loop.gpu_percent))
    collector.close()
    return run
