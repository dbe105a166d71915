"""System metrics of a host and its GPUs, and the limits of the job's container, from a few reads.

The limits are the CPU quota and memory limit of the control groups, version 1 and 2. GPUs are read
by NVML; where the driver is missing there are none, without an error.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.observe.probe.process_usage import read_proc_file
from headrace.records import system_table

_SHORTEST_LOOK_NS = 20_000_000  # the driver's own counters are updated no more often
_MOST_BYTES_PER_S = 1e12  # more than any PCIe link moves: the counter has wrapped


class GpuSampler:
    """Samples every GPU of the host; metrics that a GPU lacks are no `columns`."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self._reads: list[tuple[Callable[[], list[float]], int]] = []  # and how many values
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except Exception:  # noqa: BLE001  # no package, no driver, or one that fails
            return
        for number in range(count):
            self._find_columns(number)

    def sample(self) -> list[float | None]:
        """Return the values of the columns; None where reading a metric failed this time."""
        values: list[float | None] = []
        for read, width in self._reads:
            try:
                values += [None if math.isnan(value) else value for value in read()]
            except Exception:  # noqa: BLE001  # a GPU may be lost at any time
                values += [None] * width
        return values

    def _find_columns(self, number: int) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
        except Exception:  # noqa: BLE001  # a lost GPU: the others are still sampled
            return
        readers: dict[tuple[str, ...], Callable[[], list[float]]] = {
            ("utilisation_percent",): lambda: [nvml.nvmlDeviceGetUtilizationRates(handle).gpu],
            ("sm_percent",): _MultiprocessorUse(nvml, handle).busy_percent,
            ("memory_bytes", "memory_total_bytes"): lambda: _memory_bytes(nvml, handle),
            ("power_w",): lambda: [nvml.nvmlDeviceGetPowerUsage(handle) / 1000],
            ("pcie_received_bytes_per_s", "pcie_sent_bytes_per_s"): _PcieRates(nvml, handle).rates,
        }
        for names, read in readers.items():
            try:
                read()
            except Exception:  # noqa: BLE001, S112  # this GPU or driver lacks the metric
                continue
            self.columns += tuple(f"gpu_{number}_{name}" for name in names)
            self._reads.append((read, len(names)))


def _memory_bytes(nvml: Any, handle: Any) -> list[float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return [memory.used, memory.total]


class _PcieRates:
    """PCIe rates from the driver's counters; reading its own rates would take 20 ms each."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._before: tuple[int, list[int]] | None = None

    def rates(self) -> list[float]:
        nvml = self._nvml
        fields = [nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES]
        answers = nvml.nvmlDeviceGetFieldValues(self._handle, fields)
        for answer in answers:
            if answer.nvmlReturn != nvml.NVML_SUCCESS:
                raise nvml.NVMLError(answer.nvmlReturn)
        now_ns, counts = time.monotonic_ns(), [int(answer.value.ullVal) for answer in answers]
        before_ns, before = self._before or (now_ns, counts)
        self._before = now_ns, counts
        elapsed_s = max(now_ns - before_ns, 1) / 1e9
        rates = [(new - old) / elapsed_s for new, old in zip(counts, before, strict=True)]
        return [rate if 0 <= rate < _MOST_BYTES_PER_S else math.nan for rate in rates]


class _MultiprocessorUse:
    """The busy share of a GPU's streaming multiprocessors between two samples; from Hopper on."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._looked_ns: int | None = None
        self._before: Any = None
        self._now: Any = None

    def busy_percent(self) -> list[float]:
        nvml, now_ns = self._nvml, time.monotonic_ns()
        if self._looked_ns is None:
            if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
            self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._handle, self._before)
            self._looked_ns = now_ns
            return [math.nan]
        if now_ns - self._looked_ns < _SHORTEST_LOOK_NS:
            return [math.nan]
        nvml.nvmlGpmSampleGet(self._handle, self._now)
        self._looked_ns = now_ns
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        request.sample1, request.sample2 = self._before, self._now
        request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        self._before, self._now = self._now, self._before
        answer = nvml.nvmlGpmMetricsGet(request).metrics[0]
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
        return [float(answer.value)]


_NO_LIMIT_BYTES = 1 << 60  # version 1 has a huge number where there is no limit


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What the processes of a job may use together."""

    cores: float  # by affinity and quota; may be a fraction
    core_numbers: tuple[int, ...]
    memory_bytes: int  # the container's limit, or else the host's memory
    memory_used: Path | None  # file with the bytes that count against the limit; None: no limit
    cpu_stat: Path | None  # file with the time for which the quota stopped them; None: no quota


def read_limits(proc: Path = Path("/proc/self")) -> ResourceLimits:
    """Return the limits of this process's control groups: the tightest of all levels."""
    core_numbers = tuple(sorted(os.sched_getaffinity(0)))
    cores, cpu_stat = float(len(core_numbers)), None
    memory_bytes, memory_used = psutil.virtual_memory().total, None
    for group in _groups(proc, "cpu"):
        quota = _quota(group)
        if quota is not None:
            cpu_stat = cpu_stat or group / "cpu.stat"
            cores = min(cores, quota)
    for group in _groups(proc, "memory"):
        limit = _memory_limit(group)
        if limit is not None and limit < memory_bytes:
            memory_bytes = limit
            current = group / "memory.current"
            memory_used = current if current.exists() else group / "memory.usage_in_bytes"
    return ResourceLimits(cores, core_numbers, memory_bytes, memory_used, cpu_stat)


def cpu_quota(proc: Path) -> float | None:
    """Return the cores that a process's control groups allow, by its folder in /proc; None: all."""
    quotas = [quota for group in _groups(proc, "cpu") if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups that hold the process, innermost first."""
    lines = _text_of(proc / "cgroup").splitlines()
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for line in _text_of(proc / "mountinfo").splitlines():
        # A line is: two numbers, device, root, mount point, options - type, source, more options.
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", "", ""][:3]
        if kind == "cgroup2":
            paths = [path for number, _, path in groups if number == "0"]
        elif kind == "cgroup" and controller in options.split(","):
            paths = [path for _, names, path in groups if controller in names.split(",")]
        else:
            continue
        root, mount = before.split()[3:5]
        for path in paths:
            yield from _upward(Path(mount), root, path)


def _upward(mount: Path, root: str, path: str) -> Iterator[Path]:
    # In a container the mount's root is its own group, while the path may be the host's.
    inside = path.removeprefix(root) if root != "/" else path
    group = mount / inside.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = mount
    while True:
        yield group
        if group == mount:
            return
        group = group.parent


def _quota(group: Path) -> float | None:
    words = _text_of(group / "cpu.max").split()
    if not words:
        # version 1
        words = [_text_of(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _memory_limit(group: Path) -> int | None:
    text = _text_of(group / "memory.max") or _text_of(group / "memory.limit_in_bytes")
    try:
        limit = int(text)
    except ValueError:
        return None
    return limit if 0 < limit < _NO_LIMIT_BYTES else None


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


_CPU_FIELD_INDEXES = {"user": (0, 1), "system": (2, 5, 6), "io_wait": (4,), "steal": (7,)}
_IDLE_FIELD_INDEXES = (3, 4)  # in /proc/stat: user nice system idle iowait irq softirq steal
_CPU_FIELDS = 8


@dataclass(slots=True)
class _Counters:
    """Counters that only grow, at one moment."""

    t_ns: int
    cores: dict[int, tuple[int, ...]]
    throttled_ns: int
    disk: tuple[int, int] | None
    net: tuple[int, int] | None
    cards: tuple[str, ...]  # the network cards that `net` counts


class SystemSampler:
    """Samples the host's `columns` of `system`; rates are over the time since the last sample."""

    def __init__(self) -> None:
        self.limits: ResourceLimits = read_limits()
        self._gpus = GpuSampler()
        self._stat = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._before = self._counters()
        self._numbers = [n for n in self.limits.core_numbers if n in self._before.cores]
        optional = {"cpu_throttled_percent": self.limits.cpu_stat is None}
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
        values: dict[str, float | None] = {"t_ns": now.t_ns}
        values |= self._cpu(before, now)
        values |= self._memory()
        disk = _rates(now.disk, before.disk, elapsed_s)
        values["disk_read_bytes_per_s"], values["disk_write_bytes_per_s"] = disk
        same = now.cards == before.cards  # a new card's total since boot is not this tick's traffic
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
_ETHERNET = 1  # ARPHRD_ETHER
_VIRTUAL_DISKS = ("loop", "zram", "ram")  # files, and memory


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


@functools.cache
def is_disk(name: str, block: Path = Path("/sys/block")) -> bool:
    """Return whether it is a whole physical disk: no partition, and not built on other disks."""
    disk = block / name.replace("/", "!")
    if not disk.exists() or name.startswith(_VIRTUAL_DISKS):
        return False
    return not any((disk / "slaves").glob("*"))  # volumes, RAID and encryption have them


@functools.lru_cache(maxsize=8)
def own_interfaces(
    names: tuple[str, ...],
    net: Path = Path("/sys/class/net"),
    routes: Path = Path("/proc/net/route"),
) -> tuple[str, ...]:
    """Return the interfaces through which bytes leave the host; all, if that is unknown.

    A bond, bridge or tunnel counts the bytes of its cards again. A container has no card: there,
    the Ethernet of the default route counts.
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
    """Return whether it is Ethernet that leads out of a container and is built on no other."""
    try:
        kind, number, other_end = (
            int((interface / name).read_text()) for name in ("type", "ifindex", "iflink")
        )
    except (OSError, ValueError):
        return False
    return kind == _ETHERNET and number != other_end and not any(interface.glob("lower_*"))


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
