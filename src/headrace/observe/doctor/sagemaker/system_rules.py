"""SageMaker Debugger's rules about system metrics: cores, I/O wait, GPUs and their memory."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from headrace.observe.doctor.findings import Fact, Finding
from headrace.observe.doctor.sagemaker.debugger_metrics import (
    PATIENCE,
    WINDOW,
    DebuggerMetrics,
    debugger_finding,
    debugger_report,
    debugger_rule,
    quantile,
)
from headrace.observe.whatif.tables import Flags, Floats

_BATCH_SIZE_CPU, _BATCH_SIZE_GPU, _BATCH_SIZE_MEMORY = 70.0, 70.0, 70.0
_BATCH_SIZE_QUANTILE = 0.95


@debugger_rule("BatchSize", gpus=1)
def check_batch_size(recorded: DebuggerMetrics) -> Finding | str | None:
    """CPU, a GPU and its memory are used little: the batch is too small, or the host too large.

    Fires where the 95th percentiles of 500 samples are below 70 % for the mean of the cores,
    for a GPU and for that GPU's memory, after more than 1,000 samples (BatchSize:
    cpu_threshold_p95 70, gpu_threshold_p95 70, gpu_memory_threshold_p95 70, window 500,
    patience 1000).
    """
    if recorded.gpu_memory is None:
        return "the size of the GPUs' memory was not recorded"
    cpu = recorded.cores.mean(axis=1) if recorded.cores.size else np.zeros(0)
    if not len(cpu):
        return "no core was recorded"
    for count in recorded.evaluations:
        window = slice(count - WINDOW, count)
        cpu_used = quantile(cpu[window], _BATCH_SIZE_QUANTILE)
        for place, gpu in enumerate(recorded.gpu_numbers):
            used = quantile(recorded.gpus[window, place], _BATCH_SIZE_QUANTILE)
            memory = quantile(recorded.gpu_memory[window, place], _BATCH_SIZE_QUANTILE)
            if (
                cpu_used < _BATCH_SIZE_CPU
                and used < _BATCH_SIZE_GPU
                and memory < _BATCH_SIZE_MEMORY
            ):
                return debugger_finding(
                    f"the cores, GPU {gpu} and its memory are used little: {cpu_used:.0f}%, "
                    f"{used:.0f}% and {memory:.0f}% at the 95th percentile",
                    gpu=gpu,
                    cpu_p95_percent=cpu_used,
                    gpu_p95_percent=used,
                    gpu_memory_p95_percent=memory,
                    after_min=recorded.minutes(count),
                )
    return None


_BOTTLENECK_SHARE, _IDLE_GPU_PERCENT = 0.5, 10.0
_BUSY_CORE_PERCENT, _IO_WAIT_PERCENT = 90.0, 50.0


@debugger_rule("CPUBottleneck", gpus=1)
def check_cpu_bottleneck(recorded: DebuggerMetrics) -> Finding | str | None:
    """A GPU has little to do while a core is busy: the CPU holds it up.

    Fires where in more than 50 % of all samples so far any one core is above 90 % and any one
    GPU below 10 %, after more than 1,000 samples (CPUBottleneck: threshold 50, cpu_threshold
    90, gpu_threshold 10, patience 1000). One busy core is enough, and a GPU that idles half of
    its time is not: Headrace's own `cpu-bound-worker` looks at how long steps wait instead.
    """
    if not recorded.cores.shape[1]:
        return "no core was recorded"
    busy: Flags = np.any(recorded.cores > _BUSY_CORE_PERCENT, axis=1)
    return _bottleneck(recorded, busy, "a core is above 90%")


@debugger_rule("IOBottleneck", gpus=1)
def check_io_bottleneck(recorded: DebuggerMetrics) -> Finding | str | None:
    """A GPU has little to do while the host waits for its disks.

    Fires where in more than 50 % of all samples so far I/O wait is above 50 % of a core and any
    one GPU below 10 %, after more than 1,000 samples (IOBottleneck: threshold 50, io_threshold
    50, gpu_threshold 10, patience 1000). Debugger looks at each core's I/O wait; recorded is
    that of all cores together, so here it is added up over them: wherever one core is above 50
    %, so is the sum.
    """
    if recorded.io_wait is None:
        return "no I/O wait was recorded"
    busy: Flags = recorded.io_wait * max(recorded.cores.shape[1], 1) > _IO_WAIT_PERCENT
    return _bottleneck(recorded, busy, "I/O wait is above 50% of a core")


def _bottleneck(recorded: DebuggerMetrics, busy: Flags, what: str) -> Finding | None:
    """Return a finding if something is busy while a GPU is not, in most samples so far."""
    low: Flags = np.any(recorded.gpus < _IDLE_GPU_PERCENT, axis=1)
    both = low & busy
    count = recorded.first_above(_BOTTLENECK_SHARE, both)
    if count is None:
        return None
    share = float(both[:count].mean())
    return debugger_finding(
        f"in {share:.0%} of the samples {what} while a GPU is below 10%",
        bottleneck_share=share,
        low_gpu_share=float(low[:count].mean()),
        after_min=recorded.minutes(count),
    )


_P95_LIMIT, _P5_LIMIT = 70.0, 10.0


@debugger_rule("LowGPUUtilization", gpus=1)
def check_low_gpu_utilization(recorded: DebuggerMetrics) -> Finding | str | None:
    """A GPU is used little, or by fits and starts.

    Fires where a GPU's 95th percentile over 500 samples is below 70 %, or above that with a 5th
    percentile below 10 %, after more than 1,000 samples (LowGPUUtilization: threshold_p95 70,
    threshold_p5 10, window 500, patience 1000).
    """
    for count in recorded.evaluations:
        for place, gpu in enumerate(recorded.gpu_numbers):
            window = recorded.gpus[count - WINDOW : count, place]
            high, low = quantile(window, 0.95), quantile(window, 0.05)
            if high < _P95_LIMIT or (high > _P95_LIMIT and low < _P5_LIMIT):
                how = "is used little" if high < _P95_LIMIT else "is used by fits and starts"
                return debugger_finding(
                    f"GPU {gpu} {how}: {low:.0f}% at the 5th percentile, {high:.0f}% at the 95th",
                    gpu=gpu,
                    gpu_p5_percent=low,
                    gpu_p95_percent=high,
                    after_min=recorded.minutes(count),
                )
    return None


_MEMORY_INCREASE, _MEMORY_WINDOW = 5.0, 10


@debugger_rule("GPUMemoryIncrease", gpus=1)
def check_gpu_memory_increase(recorded: DebuggerMetrics) -> Finding | str | None:
    """Memory in use on a GPU jumps up.

    Fires where the mean of a GPU's last 10 samples, in percent of its memory, is more than 5
    points above the mean of those before the last two, after more than 1,000 samples
    (GPUMemoryIncrease: increase 5, window 10, patience 1000). These are the windows of
    Debugger's source. It sees jumps; growth that goes on for hours is what Headrace's own
    `memory-growth` looks for.
    """
    if recorded.gpu_memory is None:
        return "the size of the GPUs' memory was not recorded"
    for place, gpu in enumerate(recorded.gpu_numbers):
        used = recorded.gpu_memory[:, place]
        increase = _memory_increase(used[np.isfinite(used)])[PATIENCE - _MEMORY_WINDOW :]
        if len(increase) and increase.max() > _MEMORY_INCREASE:
            return debugger_finding(
                f"memory in use on GPU {gpu} jumps by {increase.max():.1f} points, on average "
                "over 10 samples",
                gpu=gpu,
                increase_percent=float(increase.max()),
                jumps=int((increase > _MEMORY_INCREASE).sum()),
                highest_percent=float(np.nanmax(used)),
            )
    return None


def _memory_increase(used: Floats) -> Floats:
    """Return the rise of the mean for each sample from the eleventh on."""
    if len(used) <= _MEMORY_WINDOW:
        return np.zeros(0)
    sums = np.concatenate([[0.0], np.cumsum(used)])
    ends = np.arange(_MEMORY_WINDOW + 1, len(used) + 1)
    last = (sums[ends] - sums[ends - _MEMORY_WINDOW]) / _MEMORY_WINDOW
    before = (sums[ends - 2] - sums[ends - _MEMORY_WINDOW - 1]) / (_MEMORY_WINDOW - 1)
    increase: Floats = last - before
    return increase


_DISTANCE_LIMIT = 0.5
_HISTOGRAM_EDGES = np.arange(0.0, 101.0, 2.0)


@debugger_rule("LoadBalancing", gpus=2)
def check_load_balancing(recorded: DebuggerMetrics) -> Finding | str | None:
    """The GPUs of a host are not used alike.

    Fires where the Jensen-Shannon distance between two GPUs' histograms of utilisation, in bins
    of 2 %, is above 0.5, after more than 1,000 samples (LoadBalancing: threshold 0.5, patience
    1000). Debugger leaves samples above 98 % out; here they count. It sees utilisation, never
    time: which rank the others wait for is what Headrace's own `slow-rank` tells.
    """
    shares = [_histogram(recorded.gpus[:, place]) for place in range(len(recorded.gpu_numbers))]
    distance, one, other = max(
        (_distance(shares[one], shares[other]), one, other)
        for one, other in combinations(range(len(shares)), 2)
    )
    if distance <= _DISTANCE_LIMIT:
        return None
    names = recorded.gpu_numbers[one], recorded.gpu_numbers[other]
    means = [float(np.nanmean(recorded.gpus[:, place])) for place in (one, other)]
    return debugger_finding(
        f"GPU {names[0]} and GPU {names[1]} are not used alike: {means[0]:.0f}% and "
        f"{means[1]:.0f}% on average",
        distance=distance,
        gpu=names[0],
        other_gpu=names[1],
        gpu_mean_percent=means[0],
        other_gpu_mean_percent=means[1],
    )


def _histogram(used: Floats) -> Floats:
    counts, _ = np.histogram(used[np.isfinite(used)], bins=_HISTOGRAM_EDGES)
    shares: Floats = counts / max(counts.sum(), 1)
    return shares


def _distance(one: Floats, other: Floats) -> float:
    """Return the Jensen-Shannon distance with the natural logarithm: 0 to 0.83."""
    middle = (one + other) / 2
    return float(np.sqrt(max((_entropy(one, middle) + _entropy(other, middle)) / 2, 0.0)))


def _entropy(shares: Floats, of: Floats) -> float:
    there = shares > 0
    return float((shares[there] * np.log(shares[there] / of[there])).sum())


_PERCENTILES = (50, 95, 99)


@debugger_rule("OverallSystemUsage")
def check_overall_system_usage(recorded: DebuggerMetrics) -> Finding | str | None:
    """How much of the host was used. Fires never: it only reports (OverallSystemUsage).

    Percentiles of all samples: the mean of the cores, I/O wait, each GPU and its memory.
    """
    if not len(recorded.t_ns) or not recorded.cores.shape[1]:
        return "no sample of the system was recorded"
    series: dict[str, Floats] = {"cpu": recorded.cores.mean(axis=1)}
    if recorded.io_wait is not None:
        series["io_wait"] = recorded.io_wait
    for place, gpu in enumerate(recorded.gpu_numbers):
        series[f"gpu_{gpu}"] = recorded.gpus[:, place]
        if recorded.gpu_memory is not None:
            series[f"gpu_{gpu}_memory"] = recorded.gpu_memory[:, place]
    evidence: dict[str, Fact] = {
        f"{name}_p{percentile}_percent": quantile(values, percentile / 100)
        for name, values in series.items()
        for percentile in _PERCENTILES
    }
    medians = [f"the cores {quantile(series['cpu'], 0.5):.0f}%"]
    medians += [
        f"GPU {gpu} {quantile(recorded.gpus[:, place], 0.5):.0f}%"
        for place, gpu in enumerate(recorded.gpu_numbers)
        if np.isfinite(recorded.gpus[:, place]).any()
    ]
    return debugger_report(f"used, at the median: {', '.join(medians)}", evidence)
