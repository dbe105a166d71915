"""SageMaker Debugger's profiler rules, and their evaluation as by ProfilerReport.

Names, thresholds and meanings are Debugger's, so that its users get the same alarms: parameters of
`smdebug_rulesconfig/profiler_rules/rules.py` in awslabs/sagemaker-debugger-rulesconfig, conditions
of the rules' sources as published with `smdebug`. Where records differ from Debugger's samples, the
docstring of the check says so.

Debugger samples every 500 ms, as Headrace does by default, and its rules are evaluated once a
minute while the job runs. So a rule here is evaluated for the same moments: each minute, and the
end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from headrace.observe.doctor.findings import Diagnosis, Fact, Finding, NotEvaluated, Verdict
from headrace.observe.whatif.hosts import of_host, training_host
from headrace.observe.whatif.tables import Columns, Flags, Floats, Ints, Tables, columns
from headrace.records.schema import PHASES

PATIENCE = 1000
"""A rule about the system needs more samples than this: over eight minutes."""
WINDOW = 500
"""Number of samples that quantiles are of."""
_LOOK_NS = 60_000_000_000
_CORE = re.compile(r"core_(\d+)_percent")
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class DebuggerMetrics:
    """The recorded metrics of a run; percentages are NaN if a sample lacks them, None if all do."""

    t_ns: Ints  # of each sample of the system, ascending
    cores: Floats  # percent: a row a sample, a column a core
    io_wait: Floats | None  # of all cores together, in percent
    gpu_numbers: tuple[int, ...]
    gpus: Floats  # percent: a row a sample, a column a GPU
    gpu_memory: Floats | None  # in percent, in that shape
    steps: Columns
    batches: Columns
    processes: Columns
    system: Columns

    @property
    def evaluations(self) -> tuple[int, ...]:
        """Sample counts at which rules are evaluated: each minute and the end, after PATIENCE."""
        if not len(self.t_ns):
            return ()
        minutes = np.arange(self.t_ns[0] + _LOOK_NS, self.t_ns[-1], _LOOK_NS)
        counts = np.append(np.searchsorted(self.t_ns, minutes), len(self.t_ns))
        return tuple(int(count) for count in np.unique(counts) if count > PATIENCE)

    @property
    def started_ns(self) -> int | None:
        """When the recording of the run began; None if nothing was recorded."""
        starts = (self.t_ns, self.processes["started_ns"])
        return min((int(times.min()) for times in starts if len(times)), default=None)

    def minutes(self, count: int) -> float:
        """Return the minutes of sampling before an evaluation."""
        return float(self.t_ns[count - 1] - self.t_ns[0]) / _LOOK_NS

    def first_above(self, share: float, there: Flags) -> int | None:
        """Return the first evaluation by which more than a share of the samples had a property."""
        counts = np.cumsum(there)
        return next(
            (count for count in self.evaluations if counts[count - 1] > share * count), None
        )

    def missing(self, gpus: int) -> str | None:
        """Return why a rule about the system, or some GPUs, is not evaluated; None if it is."""
        if len(self.gpu_numbers) < gpus:
            count_text = "no GPU" if not self.gpu_numbers else f"only {len(self.gpu_numbers)} GPU"
            return f"{count_text} was recorded"
        if not self.evaluations:
            return (
                f"{len(self.t_ns):,} samples of the system were recorded, and it begins after "
                f"{PATIENCE:,}"
            )
        return None


def read_debugger_metrics(tables: Tables) -> DebuggerMetrics:
    """Return the recorded metrics of a run."""
    system = of_host(columns(tables, "system"), training_host(tables))
    system = system.where(np.argsort(system["t_ns"], kind="stable"))
    numbers = sorted(
        int(match[1])
        for name in system
        if (match := _GPU.fullmatch(name)) and np.isfinite(system[name]).any()
    )
    return DebuggerMetrics(
        t_ns=system["t_ns"],
        cores=_stacked_columns(system, [name for name in system if _CORE.fullmatch(name)]),
        io_wait=system.get("io_wait_percent"),
        gpu_numbers=tuple(numbers),
        gpus=_stacked_columns(system, [f"gpu_{number}_utilisation_percent" for number in numbers]),
        gpu_memory=_memory(system, numbers),
        steps=columns(tables, "steps"),
        batches=columns(tables, "batches"),
        processes=columns(tables, "processes"),
        system=system,
    )


DebuggerRuleCheck: TypeAlias = Callable[[DebuggerMetrics], Finding | NotEvaluated | None]
_Check: TypeAlias = Callable[[DebuggerMetrics], Finding | str | None]
REGISTERED: dict[str, DebuggerRuleCheck] = {}


def debugger_rule(name: str, *, gpus: int = 0) -> Callable[[_Check], DebuggerRuleCheck]:
    """Register a check that returns a finding, or why it is not evaluated, under its name.

    If it looks at GPUs, it needs so many, and PATIENCE.
    """

    def register(check: _Check) -> DebuggerRuleCheck:
        @functools.wraps(check)
        def named(recorded: DebuggerMetrics) -> Finding | NotEvaluated | None:
            outcome = (recorded.missing(gpus) if gpus else None) or check(recorded)
            if isinstance(outcome, str):
                return NotEvaluated(name, outcome)
            return None if outcome is None else replace(outcome, rule=name)

        REGISTERED[name] = named
        return named

    return register


def debugger_finding(title: str, seconds_lost: float = 0.0, **evidence: float | str) -> Finding:
    """Return a finding of Debugger's, which has no severities: each is a warning."""
    return Finding(
        rule="", severity="warning", title=title, seconds_lost=seconds_lost, evidence=evidence
    )


def debugger_report(title: str, evidence: Mapping[str, Fact]) -> Finding:
    """Return the finding of a rule that only reports."""
    return Finding(rule="", severity="info", title=title, seconds_lost=0.0, evidence=evidence)


def quantile(values: Floats, share: float) -> float:
    """Return a quantile of the finite values; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else float("nan")


def _stacked_columns(system: Columns, names: Sequence[str]) -> Floats:
    if not names:
        return np.zeros((system.count, 0))
    return np.column_stack([system[name].astype(np.float64) for name in names])


def _memory(system: Columns, numbers: Sequence[int]) -> Floats | None:
    used = [f"gpu_{number}_memory_bytes" for number in numbers]
    total = [f"gpu_{number}_memory_total_bytes" for number in numbers]
    if not numbers or not {*used, *total} <= system.keys():
        return None
    part, whole = _stacked_columns(system, used), _stacked_columns(system, total)
    known = (part >= 0) & (whole > 0)
    return np.where(known, 100.0 * part / np.where(known, whole, 1.0), np.nan)


_FEWEST_PROCESSES, _MOST_PROCESSES, _FEWEST_SECONDS = 0.7, 2.0, 10


@debugger_rule("Dataloader")
def check_dataloader(recorded: DebuggerMetrics) -> Finding | str | None:
    """There are far fewer or far more processes that make batches than cores.

    Fires where the median number of processes that make batches in the same second is below 70
    % or above 200 % of the cores, given more than 10 such seconds (Dataloader: min_threshold
    70, max_threshold 200). Counted are workers, and ranks without workers, in the seconds in
    which they began a batch. It counts processes and never asks whether anything waits for
    them: Headrace's own `too-few-workers` and `oversubscribed-threads` do.
    """
    cores = recorded.cores.shape[1]
    if not cores:
        return "no core was recorded"
    if recorded.batches.count == 0:
        return "no batch of a loader was recorded"
    at_once = _processes_a_second(recorded.batches)
    if len(at_once) <= _FEWEST_SECONDS:
        return (
            f"batches were begun in {len(at_once)} different seconds, and it begins after "
            f"{_FEWEST_SECONDS}"
        )
    median = int(np.median(at_once))
    if _FEWEST_PROCESSES * cores <= median <= _MOST_PROCESSES * cores:
        return None
    how = "below 70%" if median < _FEWEST_PROCESSES * cores else "above 200%"
    return debugger_finding(
        f"{median} processes make batches at a time, for {cores} cores: {how}",
        processes=median,
        cores=cores,
        processes_a_core=median / cores,
    )


def _processes_a_second(batches: Columns) -> Ints:
    """Return for each second in which a batch began the number of processes that began one."""
    makers = [batches[name] for name in ("rank", "loader", "worker")]
    begun = np.column_stack([batches["start_ns"] // 1_000_000_000, *makers])
    seconds = np.unique(begun, axis=0)[:, 0]
    return np.asarray(np.unique(seconds, return_counts=True)[1])


@debugger_rule("MaxInitializationTime")
def check_max_initialization_time(recorded: DebuggerMetrics) -> Finding | str | None:
    """The first step is late.

    Fires where more than 20 minutes pass between the start of the recording and the first training
    step, or have passed without one (MaxInitializationTime: threshold 20).
    """
    started_ns, steps = recorded.started_ns, recorded.steps
    if started_ns is None:
        return "nothing was recorded"
    train = steps.having(kind="train")["start_ns"]
    if len(train):
        minutes = (int(train.min()) - started_ns) / 60e9
        title = f"{minutes:.0f} minutes pass before the first step"
    else:
        minutes = (int(recorded.t_ns[-1]) - started_ns) / 60e9 if len(recorded.t_ns) else 0.0
        title = f"{minutes:.0f} minutes have passed without a step"
    if minutes > 20.0:
        return debugger_finding(title, seconds_lost=minutes * 60, minutes=minutes)
    return None if len(train) else "no training step was recorded"


_DEVIATIONS, _FEWEST_OUTLIERS, _FEWEST_STEPS = 3.0, 10, 100
_KINDS = {"train": "training", "eval": "evaluation"}


@debugger_rule("StepOutlier")
def check_step_outlier(recorded: DebuggerMetrics) -> Finding | str | None:
    """Some steps take far longer than the others.

    Fires where more than 10 steps of a kind, training or evaluation, are more than 3 standard
    deviations above the mean of their kind, over all ranks, given more than 100 of it
    (StepOutlier: stddev 3, n_outliers 10, mode None). The mean and the deviation hold the
    outliers too, so many of them hide each other: Headrace's own `step-outliers` goes by the
    median, and names the line.
    """
    steps = recorded.steps
    most = 0
    for kind, name in _KINDS.items():
        of_kind = steps.having(kind=kind)
        most = max(most, of_kind.count)
        if of_kind.count <= _FEWEST_STEPS:
            continue
        wall = of_kind["wall_ns"].astype(np.float64)
        limit = float(wall.mean() + _DEVIATIONS * wall.std())
        outliers = wall[wall > limit]
        if len(outliers) > _FEWEST_OUTLIERS:
            ranks = len(np.unique(of_kind["rank"]))
            return debugger_finding(
                f"{len(outliers):,} of {len(wall):,} {name} steps take longer than "
                f"{limit / 1e6:,.0f} ms, the mean and three standard deviations",
                seconds_lost=float((outliers - wall.mean()).sum()) / ranks / 1e9,
                outliers=len(outliers),
                steps=len(wall),
                mean_ms=float(wall.mean()) / 1e6,
                deviation_ms=float(wall.std()) / 1e6,
                outlier_ms=float(outliers.mean()) / 1e6,
            )
    if most <= _FEWEST_STEPS:
        return f"{most} steps were recorded, and it begins after {_FEWEST_STEPS}"
    return None


@debugger_rule("OverallFrameworkMetrics")
def check_overall_framework_metrics(recorded: DebuggerMetrics) -> Finding | str | None:
    """What the job spent its time on. Fires never: it only reports (OverallFrameworkMetrics).

    From the start of the recording to the end of the last step, as a mean over the ranks:
    before the first step, in training steps, in evaluation, and else; and the phases of the
    training steps.
    """
    steps, started_ns = recorded.steps, recorded.started_ns
    if steps.count == 0 or started_ns is None:
        return "no step was recorded"
    ranks = len(np.unique(steps["rank"]))
    ends = steps["start_ns"] + steps["wall_ns"]
    whole_ns = max(float(ends.max()) - started_ns, 1.0)
    shares = {
        kind: float(steps["wall_ns"][steps["kind"] == kind].sum()) / ranks / whole_ns
        for kind in ("train", "eval")
    }
    before = max(float(steps["start_ns"].min()) - started_ns, 0.0) / whole_ns
    train = steps.having(kind="train")
    train_ns = max(float(train["wall_ns"].sum()), 1.0)
    return debugger_report(
        f"{before:.0%} of the time passed before the first step, {shares['train']:.0%} in "
        f"training steps, {shares['eval']:.0%} in evaluation",
        {
            "minutes": whole_ns / 60e9,
            "before_first_step_share": before,
            "training_share": shares["train"],
            "evaluation_share": shares["eval"],
            "else_share": max(1.0 - before - shares["train"] - shares["eval"], 0.0),
            **{
                f"step_{phase}_share": float(train[f"{phase}_ns"].clip(0).sum()) / train_ns
                for phase in PHASES
            },
        },
    )


_BATCH_SIZE_PERCENT, _BATCH_SIZE_QUANTILE = 70.0, 0.95


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
            if all(part < _BATCH_SIZE_PERCENT for part in (cpu_used, used, memory)):
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
    busy: Flags = np.any(recorded.cores > 90.0, axis=1)
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
    busy: Flags = recorded.io_wait * max(recorded.cores.shape[1], 1) > 50.0
    return _bottleneck(recorded, busy, "I/O wait is above 50% of a core")


def _bottleneck(recorded: DebuggerMetrics, busy: Flags, what: str) -> Finding | None:
    """Return a finding if something is busy while a GPU is not, in most samples so far."""
    low: Flags = np.any(recorded.gpus < 10.0, axis=1)
    both = low & busy
    count = recorded.first_above(0.5, both)
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
    return np.asarray(last - before)


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
    if distance <= 0.5:
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
    counts, _ = np.histogram(used[np.isfinite(used)], bins=np.arange(0.0, 101.0, 2.0))
    return np.asarray(counts / max(counts.sum(), 1))


def _distance(one: Floats, other: Floats) -> float:
    """Return the Jensen-Shannon distance with the natural logarithm: 0 to 0.83."""
    middle = (one + other) / 2
    return float(np.sqrt(max((_entropy(one, middle) + _entropy(other, middle)) / 2, 0.0)))


def _entropy(shares: Floats, of: Floats) -> float:
    there = shares > 0
    return float((shares[there] * np.log(shares[there] / of[there])).sum())


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
        for percentile in (50, 95, 99)
    }
    medians = [f"the cores {quantile(series['cpu'], 0.5):.0f}%"]
    medians += [
        f"GPU {gpu} {quantile(recorded.gpus[:, place], 0.5):.0f}%"
        for place, gpu in enumerate(recorded.gpu_numbers)
        if np.isfinite(recorded.gpus[:, place]).any()
    ]
    return debugger_report(f"used, at the median: {', '.join(medians)}", evidence)


_REPORTS = ("OverallSystemUsage", "OverallFrameworkMetrics")
_ALARMS = sorted(REGISTERED.keys() - _REPORTS)
SAGEMAKER_RULES: Mapping[str, DebuggerRuleCheck] = MappingProxyType(
    {name: REGISTERED[name] for name in (*_ALARMS, *_REPORTS)}
)
"""Every rule's check by its name, those that only report last. None: nothing was found."""


def evaluate(tables: Tables, verdict: Verdict) -> Diagnosis:
    """Return the results of Debugger's rules for a run: alarms first, then reports."""
    recorded = read_debugger_metrics(tables)
    outcomes = {rule: check(recorded) for rule, check in SAGEMAKER_RULES.items()}
    findings = [outcome for outcome in outcomes.values() if isinstance(outcome, Finding)]
    return Diagnosis(
        verdict=verdict,
        findings=tuple(sorted(findings, key=lambda finding: finding.severity == "info")),
        rules="sagemaker",
        quiet=tuple(rule for rule, outcome in outcomes.items() if outcome is None),
        not_evaluated=tuple(
            outcome for outcome in outcomes.values() if isinstance(outcome, NotEvaluated)
        ),
    )
