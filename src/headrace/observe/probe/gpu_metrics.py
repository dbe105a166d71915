"""Metrics of a host's GPUs, read by NVML; where the driver is missing there are no GPUs."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from typing import Any

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
