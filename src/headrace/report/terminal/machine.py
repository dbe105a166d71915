"""The host's cores, memory, disks, network and GPUs, just now."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns, Tables, chosen, columns, length
from headrace.report.terminal.window import Window

_NOW_NS = 2_000_000_000
_CORE = re.compile(r"core_(\d+)_percent")
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; what is not known is None.

    Attributes:
        number: Its number on the host.
        utilisation: Share of the time in which any kernel ran, 0 to 1.
        memory_bytes: Its memory in use.
        power_w: Power drawn.
        received_bytes_per_s: Over PCIe: copies to the device.
        sent_bytes_per_s: Over PCIe: copies from the device.
    """

    number: int
    utilisation: float | None
    memory_bytes: float | None
    power_w: float | None
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A host of the run; what is not known is None.

    Attributes:
        cores: Number and busy share, 0 to 1, of each core that the job may use.
        io_wait: Share of the cores' time, 0 to 1, idle with a disk read or write under way.
        throttled: Share of the time, 0 to 1, for which the container's CPU quota stopped it.
        memory_used_bytes: Memory in use: of the container, where it has a limit, or the host.
        memory_bytes: Memory that the job may use.
        disk_read_bytes_per_s: Read from all disks.
        received_bytes_per_s: Over the network.
        sent_bytes_per_s: Likewise.
        gpus: Its GPUs.
    """

    cores: tuple[tuple[int, float | None], ...] = ()
    io_wait: float | None = None
    throttled: float | None = None
    memory_used_bytes: float | None = None
    memory_bytes: float | None = None
    disk_read_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    gpus: tuple[Gpu, ...] = ()


def read_machine(tables: Tables, window: Window) -> Machine:
    """Return what the last samples of the host tell.

    Args:
        tables: Records that hold at least the last sample.
        window: The last seconds; the samples of the last two of them count, or the last one.
    """
    rows, hosts = columns(tables, "system"), columns(tables, "hosts")
    rows = chosen(rows, rows["t_ns"] <= window.until_ns)
    if length(rows) == 0:
        return Machine()
    rows = chosen(rows, rows["t_ns"] > min(window.until_ns - _NOW_NS, rows["t_ns"].max() - 1))
    used = _mean(rows, "job_memory_bytes")
    return Machine(
        cores=tuple((number, _share(rows, name)) for number, name in _numbered(rows, _CORE)),
        io_wait=_share(rows, "io_wait_percent"),
        throttled=_share(rows, "cpu_throttled_percent"),
        memory_used_bytes=_mean(rows, "memory_used_bytes") if used is None else used,
        memory_bytes=float(hosts["memory_bytes"][-1]) if length(hosts) else None,
        disk_read_bytes_per_s=_mean(rows, "disk_read_bytes_per_s"),
        received_bytes_per_s=_mean(rows, "net_received_bytes_per_s"),
        sent_bytes_per_s=_mean(rows, "net_sent_bytes_per_s"),
        gpus=tuple(_gpu(rows, number) for number, _ in _numbered(rows, _GPU)),
    )


def _gpu(rows: Columns, number: int) -> Gpu:
    return Gpu(
        number=number,
        utilisation=_share(rows, f"gpu_{number}_utilisation_percent"),
        memory_bytes=_mean(rows, f"gpu_{number}_memory_bytes"),
        power_w=_mean(rows, f"gpu_{number}_power_w"),
        received_bytes_per_s=_mean(rows, f"gpu_{number}_pcie_received_bytes_per_s"),
        sent_bytes_per_s=_mean(rows, f"gpu_{number}_pcie_sent_bytes_per_s"),
    )


def _numbered(rows: Columns, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    return sorted((int(match[1]), name) for name in rows if (match := pattern.fullmatch(name)))


def _share(rows: Columns, name: str) -> float | None:
    percent = _mean(rows, name)
    return None if percent is None else min(max(percent / 100.0, 0.0), 1.0)


def _mean(rows: Columns, name: str) -> float | None:
    if name not in rows:
        return None
    values = rows[name].astype(np.float64)
    known = values[np.isfinite(values) & (values >= 0)]  # a whole number not known is -1
    return float(known.mean()) if len(known) else None
