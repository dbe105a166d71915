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
    """One GPU by its number on the host; unknown values are None."""

    number: int
    utilisation: float | None  # share of the time in which any kernel ran, 0 to 1
    memory_bytes: float | None  # in use
    power_w: float | None
    received_bytes_per_s: float | None  # over PCIe: copies to the device
    sent_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetrics:
    """A host of the run; unknown values are None."""

    cores: tuple[tuple[int, float | None], ...] = ()  # number and busy share, 0 to 1
    io_wait: float | None = None  # share of the cores' time idle during disk access
    throttled: float | None = None  # share of time stopped by the CPU quota
    memory_used_bytes: float | None = None  # of the container if limited, or the host
    memory_bytes: float | None = None  # that the job may use
    disk_read_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    gpus: tuple[GpuMetrics, ...] = ()


def read_host_metrics(tables: Tables, window: TimeWindow) -> HostMetrics:
    """Return the metrics of the host from the window's last two seconds, or its last sample."""
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
    """The status of a run."""

    name: str
    attempt: int  # that is shown
    world_size: int | None = None  # None if unknown
    live: bool = True  # whether it is being recorded at this moment
    recording: bool = True  # whether the live switch is on; True for an ended run
    elapsed_s: float | None = None  # from its start until now or its end; None if unknown
    exit_code: int | None = None  # None while it runs, or if none was recorded
    silent_s: float = 0.0  # the age of the newest record if that is overdue; otherwise 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveVerdict:
    """The doctor's verdict on a run."""

    sentence: str  # the verdict, or why there is none
    span_s: float | None = None  # the last seconds that it is about; None: the whole run
    data_wait_share: float | None = None  # over step time in the whole run, 0 to 1; None if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    """The numbers of a run in a window of time."""

    status: RunStatus
    window: TimeWindow
    steps: StepRates
    host: HostMetrics
    processes: tuple[ProcessRates, ...]
    verdict: LiveVerdict | None = None


def read_state(tables: Tables, window: TimeWindow, status: RunStatus) -> TopState:
    """Return the numbers of the last seconds."""
    return TopState(
        status=status,
        window=window,
        steps=read_step_rates(tables, window),
        host=read_host_metrics(tables, window),
        processes=read_processes(tables, window),
    )
