"""The state that a frame shows: numbers of the run, its host, steps and processes, no text."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns, Tables, columns, row_count, select_rows
from headrace.report.top.processes import ProcessRates, read_processes
from headrace.report.top.step_rates import StepRates, TimeWindow, read_step_rates

_NOW_NS = 2_000_000_000
_CORE = re.compile(r"core_(\d+)_percent")
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetrics:
    """One GPU; unknown values are None.

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
class HostMetrics:
    """A host of the run; unknown values are None.

    Attributes:
        cores: Number and busy share, 0 to 1, of each core that the job may use.
        io_wait: Share of the cores' time, 0 to 1, idle during a disk read or write.
        throttled: Share of the time, 0 to 1, in which the container's CPU quota stopped it.
        memory_used_bytes: Memory in use: of the container if it has a limit, otherwise of the host.
        memory_bytes: Memory that the job may use.
        disk_read_bytes_per_s: Read from all disks.
        received_bytes_per_s: Received over the network.
        sent_bytes_per_s: Sent over the network.
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
    gpus: tuple[GpuMetrics, ...] = ()


def read_host_metrics(tables: Tables, window: TimeWindow) -> HostMetrics:
    """Return the metrics of the host from its last samples.

    Args:
        tables: Records that contain at least the last sample.
        window: The last seconds; samples of its last two seconds count, or the last one.
    """
    rows, hosts = columns(tables, "system"), columns(tables, "hosts")
    rows = select_rows(rows, rows["t_ns"] <= window.until_ns)
    if row_count(rows) == 0:
        return HostMetrics()
    rows = select_rows(rows, rows["t_ns"] > min(window.until_ns - _NOW_NS, rows["t_ns"].max() - 1))
    used = _mean(rows, "job_memory_bytes")
    return HostMetrics(
        cores=tuple((number, _share(rows, name)) for number, name in _numbered(rows, _CORE)),
        io_wait=_share(rows, "io_wait_percent"),
        throttled=_share(rows, "cpu_throttled_percent"),
        memory_used_bytes=_mean(rows, "memory_used_bytes") if used is None else used,
        memory_bytes=float(hosts["memory_bytes"][-1]) if row_count(hosts) else None,
        disk_read_bytes_per_s=_mean(rows, "disk_read_bytes_per_s"),
        received_bytes_per_s=_mean(rows, "net_received_bytes_per_s"),
        sent_bytes_per_s=_mean(rows, "net_sent_bytes_per_s"),
        gpus=tuple(_gpu(rows, number) for number, _ in _numbered(rows, _GPU)),
    )


def _gpu(rows: Columns, number: int) -> GpuMetrics:
    return GpuMetrics(
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
    known = values[np.isfinite(values) & (values >= 0)]  # unknown whole numbers are -1
    return float(known.mean()) if len(known) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status of a run.

    Attributes:
        name: The run's name.
        attempt: The attempt shown.
        world_size: Its ranks; None if unknown.
        live: Whether it is being recorded at this moment.
        recording: Whether the live switch is on; True for an ended run.
        elapsed_s: From its start until now or its end; None if unknown.
        exit_code: Its exit code; None while it runs, or if none was recorded.
        silent_s: The age of the newest record if that is overdue; otherwise 0.
    """

    name: str
    attempt: int
    world_size: int | None = None
    live: bool = True
    recording: bool = True
    elapsed_s: float | None = None
    exit_code: int | None = None
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveVerdict:
    """The doctor's verdict on a run.

    Attributes:
        sentence: The verdict, or why there is none.
        span_s: The last seconds that it is about; None: the whole run.
        data_wait_share: Data wait over step time in the whole run, 0 to 1; None if unknown.
    """

    sentence: str
    span_s: float | None = None
    data_wait_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    """The numbers of a run at a moment.

    Attributes:
        status: The run's status.
        window: The seconds that the numbers are about.
        steps: The rates of its steps.
        machine: Its host.
        processes: Its ranks and workers.
        told: The doctor's last verdict; None before the first.
    """

    status: RunStatus
    window: TimeWindow
    steps: StepRates
    machine: HostMetrics
    processes: tuple[ProcessRates, ...]
    told: LiveVerdict | None = None


def read_state(tables: Tables, window: TimeWindow, status: RunStatus) -> TopState:
    """Return the numbers of the last seconds.

    Args:
        tables: Records that contain at least the window, and the last rows of each table.
        window: The last seconds.
        status: The run's status.
    """
    return TopState(
        status=status,
        window=window,
        steps=read_step_rates(tables, window),
        machine=read_host_metrics(tables, window),
        processes=read_processes(tables, window),
    )
