"""System metrics of a host: its cores, memory, disks, network and GPUs, from a few reads a tick."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.observe.probe.gpu_metrics import GpuSampler
from headrace.observe.probe.host_resources import (
    ResourceLimits,
    is_disk,
    own_interfaces,
    pressure_ns,
    read_limits,
)
from headrace.observe.probe.process_usage import read_proc_file
from headrace.records import system_table
from headrace.records.schema import LAUNCHER_HOST

_CPU_FIELD_INDEXES = {"user": (0, 1), "system": (2, 5, 6), "io_wait": (4,), "steal": (7,)}
_IDLE_FIELD_INDEXES = (3, 4)  # in /proc/stat: user nice system idle iowait irq softirq steal
_CPU_FIELDS = 8


@dataclass(slots=True)
class _Counters:
    """Counters that only grow, at one moment."""

    t_ns: int
    cores: dict[int, tuple[int, ...]]
    throttled_ns: int
    pressure_ns: int
    disk: tuple[int, int] | None
    net: tuple[int, int] | None
    cards: tuple[str, ...]  # the network cards that `net` counts


class SystemSampler:
    """Samples the host's `columns` of `system`; rates are over the time since the last sample."""

    def __init__(self) -> None:
        self.limits: ResourceLimits = read_limits(psutil.virtual_memory().total)
        self._gpus = GpuSampler()
        self._stat = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._before = self._counters()
        self._numbers = [n for n in self.limits.core_numbers if n in self._before.cores]
        optional = {"cpu_throttled_percent": self.limits.cpu_stat is None}
        optional["cpu_pressure_percent"] = self.limits.cpu_pressure is None
        optional["job_memory_bytes"] = self.limits.memory_used is None
        names = [column.name for column in system_table.COLUMNS if not optional.get(column.name)]
        self.columns: tuple[str, ...] = tuple(
            system_table.sorted_columns(
                [name for name in names if "{}" not in name]
                + [f"core_{number}_percent" for number in self._numbers]
                + list(self._gpus.columns)
            )
        )

    def sample(self) -> list[float | None]:
        """Return one row of `system`, in the order of `columns`."""
        before, now = self._before, self._counters()
        self._before = now
        elapsed_s = max(now.t_ns - before.t_ns, 1) / 1e9
        values: dict[str, float | None] = {"t_ns": now.t_ns, "host": LAUNCHER_HOST}
        values |= self._cpu(before, now)
        values |= self._memory()
        disk = _rates(now.disk, before.disk, elapsed_s)
        values["disk_read_bytes_per_s"], values["disk_write_bytes_per_s"] = disk
        same = now.cards == before.cards  # a new card's total since boot is not this tick's traffic
        net = _rates(now.net, before.net, elapsed_s) if same else (None, None)
        values["net_received_bytes_per_s"], values["net_sent_bytes_per_s"] = net
        throttled_ns = now.throttled_ns - before.throttled_ns
        values["cpu_throttled_percent"] = min(100.0, throttled_ns / elapsed_s / 1e7)
        short_ns = max(now.pressure_ns - before.pressure_ns, 0)
        values["cpu_pressure_percent"] = min(100.0, short_ns / elapsed_s / 1e7)
        values |= zip(self._gpus.columns, self._gpus.sample(), strict=True)
        return [values[name] for name in self.columns]

    def _counters(self) -> _Counters:
        cards, net = _net_bytes()
        return _Counters(
            t_ns=time.monotonic_ns(),
            cores=_core_times(os.pread(self._stat, 1 << 20, 0).decode()),
            throttled_ns=_throttled_ns(self.limits.cpu_stat),
            pressure_ns=pressure_ns(self.limits.cpu_pressure),
            disk=_disk_bytes(),
            net=net,
            cards=cards,
        )

    def _cpu(self, before: _Counters, now: _Counters) -> dict[str, float | None]:
        values: dict[str, float | None] = {}
        total = [0] * _CPU_FIELDS
        for number in self._numbers:
            old = before.cores.get(number)
            new = now.cores.get(number)
            if old is None or new is None:  # the core is offline
                values[f"core_{number}_percent"] = None
                continue
            # Some kernel counters go back a little at times.
            spent = [max(0, a - b) for a, b in zip(new, old, strict=True)]
            total = [a + b for a, b in zip(total, spent, strict=True)]
            values[f"core_{number}_percent"] = _busy_percent(spent)
        whole = sum(total)
        for name, places in _CPU_FIELD_INDEXES.items():
            share = sum(total[place] for place in places) / whole if whole else 0.0
            column = "io_wait_percent" if name == "io_wait" else f"cpu_{name}_percent"
            values[column] = 100 * share
        return values

    def _memory(self) -> dict[str, float | None]:
        memory = psutil.virtual_memory()
        load, _, _, threads, _ = read_proc_file("/proc/loadavg").decode().split()
        values: dict[str, float | None] = {
            "memory_used_bytes": memory.total - memory.available,
            "memory_available_bytes": memory.available,
            "shared_memory_bytes": memory.shared,
            "load_1_minute": float(load),
            "running_threads": int(threads.partition("/")[0]),
        }
        if self.limits.memory_used is not None:
            try:
                values["job_memory_bytes"] = int(self.limits.memory_used.read_text())
            except (OSError, ValueError):
                values["job_memory_bytes"] = None
        return values


_NO_COUNTERS = (NotImplementedError, ValueError, AssertionError, OSError)
"""What psutil raises where a host, such as a sandbox, has no such counters, or odd ones."""


def _disk_bytes() -> tuple[int, int] | None:
    """Return the bytes read from and written to disks; None if the host has no such counters."""
    try:
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
    except _NO_COUNTERS:
        return None
    own = [disk for name, disk in disks.items() if is_disk(name)]
    return sum(disk.read_bytes for disk in own), sum(disk.write_bytes for disk in own)


def _net_bytes() -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Return the cards that count, and bytes received and sent; None without such counters."""
    try:
        cards = psutil.net_io_counters(pernic=True, nowrap=False)
    except _NO_COUNTERS:
        return (), None
    cards.pop("lo", None)  # traffic between ranks of this host
    names = own_interfaces(tuple(cards))
    own = [cards[name] for name in names]
    return names, (sum(card.bytes_recv for card in own), sum(card.bytes_sent for card in own))


def _core_times(stat: str) -> dict[int, tuple[int, ...]]:
    times = {}
    for line in stat.splitlines()[1:]:
        if not line.startswith("cpu"):
            break
        name, *ticks = line.split()
        times[int(name[3:])] = tuple(map(int, ticks[:_CPU_FIELDS]))
    return times


def _busy_percent(spent: list[int]) -> float:
    whole = sum(spent)
    return 100 * (1 - sum(spent[place] for place in _IDLE_FIELD_INDEXES) / whole) if whole else 0.0


def _throttled_ns(stat: Path | None) -> int:
    if stat is None:
        return 0
    try:
        words = dict(line.split() for line in stat.read_text().splitlines())
        return int(words.get("throttled_usec", 0)) * 1000 + int(words.get("throttled_time", 0))
    except (OSError, ValueError):
        return 0


def _rates(
    now: tuple[int, int] | None, before: tuple[int, int] | None, elapsed_s: float
) -> tuple[float, float] | tuple[None, None]:
    if now is None or before is None:
        return None, None
    return max(0, now[0] - before[0]) / elapsed_s, max(0, now[1] - before[1]) / elapsed_s
