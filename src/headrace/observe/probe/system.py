"""Samples a host, cheaply: a few reads of /proc a tick."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.observe.probe.proc import read as read_proc_file
from headrace.observe.probe.system_gpus import Gpus
from headrace.observe.probe.system_limits import Limits, limits
from headrace.records import system

_CPU_PLACES = {"user": (0, 1), "system": (2, 5, 6), "io_wait": (4,), "steal": (7,)}
_IDLE_PLACES = (3, 4)  # of a line of /proc/stat: user nice system idle iowait irq softirq steal
_CPU_FIELDS = 8


@dataclass(slots=True)
class _Counters:
    """What only grows, at one moment."""

    t_ns: int
    cores: dict[int, tuple[int, ...]]
    throttled_ns: int
    disk: tuple[int, int] | None
    net: tuple[int, int] | None
    cards: tuple[str, ...]  # whose bytes these are


class SystemSampler:
    """Samples the host; what is a rate is over the time since the sample before.

    Attributes:
        columns: The columns of `system` that this host has, in the order of `sample`.
        limits: What the job may use.
    """

    def __init__(self) -> None:
        self.limits: Limits = limits()
        self._gpus = Gpus()
        self._stat = _open(Path("/proc/stat"))
        self._before = self._counters()
        self._numbers = [n for n in self.limits.core_numbers if n in self._before.cores]
        optional = {"cpu_throttled_percent": self.limits.cpu_stat is None}
        optional["job_memory_bytes"] = self.limits.memory_used is None
        names = [column.name for column in system.COLUMNS if not optional.get(column.name)]
        self.columns: tuple[str, ...] = tuple(
            system.in_order(
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
        values: dict[str, float | None] = {"t_ns": now.t_ns}
        values |= self._cpu(before, now)
        values |= self._memory()
        disk = _rates(now.disk, before.disk, elapsed_s)
        values["disk_read_bytes_per_s"], values["disk_write_bytes_per_s"] = disk
        same = now.cards == before.cards  # else its bytes since it was made would be this tick's
        net = _rates(now.net, before.net, elapsed_s) if same else (None, None)
        values["net_received_bytes_per_s"], values["net_sent_bytes_per_s"] = net
        throttled_ns = now.throttled_ns - before.throttled_ns
        values["cpu_throttled_percent"] = min(100.0, throttled_ns / elapsed_s / 1e7)
        values |= zip(self._gpus.columns, self._gpus.sample(), strict=True)
        return [values[name] for name in self.columns]

    def _counters(self) -> _Counters:
        cards, net = _net_bytes()
        return _Counters(
            t_ns=time.monotonic_ns(),
            cores=_core_times(os.pread(self._stat, 1 << 20, 0).decode()),
            throttled_ns=_throttled_ns(self.limits.cpu_stat),
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
            if old is None or new is None:  # the core is switched off at the moment
                values[f"core_{number}_percent"] = None
                continue
            # Some counters of the kernel go back a little at times.
            spent = [max(0, a - b) for a, b in zip(new, old, strict=True)]
            total = [a + b for a, b in zip(total, spent, strict=True)]
            values[f"core_{number}_percent"] = _busy_percent(spent)
        whole = sum(total)
        for name, places in _CPU_PLACES.items():
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
_ETHERNET = 1  # ARPHRD_ETHER
_NO_DISKS = ("loop", "zram", "ram")  # files, and memory


def _disk_bytes() -> tuple[int, int] | None:
    """Return the bytes read from and written to disks; None where the host does not tell."""
    try:
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
    except _NO_COUNTERS:
        return None
    own = [disk for name, disk in disks.items() if is_disk(name)]
    return sum(disk.read_bytes for disk in own), sum(disk.write_bytes for disk in own)


def _net_bytes() -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Return by which cards, and the bytes received and sent; None where the host does not tell."""
    try:
        cards = psutil.net_io_counters(pernic=True, nowrap=False)
    except _NO_COUNTERS:
        return (), None
    cards.pop("lo", None)  # what ranks of this host tell each other
    names = own_cards(tuple(cards))
    own = [cards[name] for name in names]
    return names, (sum(card.bytes_recv for card in own), sum(card.bytes_sent for card in own))


@functools.cache
def is_disk(name: str, block: Path = Path("/sys/block")) -> bool:
    """Whether that is a whole disk: no part of one, and nothing that lies on others."""
    disk = block / name.replace("/", "!")
    if not disk.exists() or name.startswith(_NO_DISKS):
        return False
    return not any((disk / "slaves").glob("*"))  # as volumes, RAID and encryption have


@functools.lru_cache(maxsize=8)
def own_cards(
    names: tuple[str, ...],
    net: Path = Path("/sys/class/net"),
    routes: Path = Path("/proc/net/route"),
) -> tuple[str, ...]:
    """Return through which of the interfaces bytes leave the host; all, where nothing tells.

    A bond, a bridge or a tunnel tells again what goes through a card. A container has no card: its
    Ethernet is where its default route goes.
    """
    cards = [
        name
        for name in names
        if (net / name / "device").exists()
        or (name in _default_routes(routes) and _is_ethernet(net / name))
    ]
    return tuple(cards or names)


def _default_routes(routes: Path) -> set[str]:
    try:
        lines = [line.split() for line in routes.read_text().splitlines()[1:]]
        return {name for name, destination, *_ in lines if int(destination, 16) == 0}
    except (OSError, ValueError):
        return set()


def _is_ethernet(interface: Path) -> bool:
    """Whether it is Ethernet that leads out of a container, and lies on nothing else there."""
    try:
        kind, number, other_end = (
            int((interface / name).read_text()) for name in ("type", "ifindex", "iflink")
        )
    except (OSError, ValueError):
        return False
    leads_out = number != other_end and not any(interface.glob("lower_*"))
    return kind == _ETHERNET and leads_out


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


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
    return 100 * (1 - sum(spent[place] for place in _IDLE_PLACES) / whole) if whole else 0.0


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
