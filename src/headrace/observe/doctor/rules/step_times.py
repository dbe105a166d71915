"""Rules about the time of steps: the first is late, some are slow, or those of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding, Remedy, Severity
from headrace.observe.doctor.remedies import predict_without, predicted_remedy
from headrace.observe.doctor.slow_steps import are_others_at_fault, cause_of_slow_steps
from headrace.observe.doctor.stack_samples import (
    StackSample,
    cut_to_special_line,
    find_cause,
    samples_during,
)
from headrace.observe.whatif.tables import Columns, Flags, Ints
from headrace.observe.whatif.train_steps import TrainSteps
from headrace.records.schema import PHASES, RANK_ENDED

_MUCH_OF_IT = 0.3
_LATE_NS = 5_000_000_000


@rule
def check_slow_start(evidence: Evidence) -> Finding | None:
    """It takes long until training begins.

    Fires where more than 60 s pass from the run's start until its steps have their steady
    length (20 s, if that is 30 % of the run's time), or more than 20 s in waiting for the first
    batch: imports and the start of workers take less. The time of steps before, at that length,
    does not count, nor that of evaluation and of batches passed over. In a short run, such as a
    trial of a sweep, less counts: 5 s for the first batch if that is a tenth of the run's time.
    In a run of which it is less than 1 % its severity is "info", from half of its time on
    "serious".
    """
    processes, steps, wall = evidence.processes, evidence.steps, evidence.other_time.wall
    span = steps.span_ns
    ranks = processes.having(role="rank")["started_ns"]
    if not evidence.enough or span is None or not len(ranks):
        return None
    before_ns = (steps.recorded - len(steps)) / len(steps.ranks) * float(np.median(steps.wall_ns))
    began_ns = min(int(ranks.min()), wall.began_ns)
    start_s = max((span[0] - began_ns - before_ns) / 1e9 - wall.seconds_before(span[0]), 0.0)
    first_s, all_s = _first_batch_s(evidence), (span[1] - began_ns) / 1e9
    least_first_s = min(20.0, max(5.0, 0.1 * all_s))
    least_s = 20.0 if start_s >= _MUCH_OF_IT * all_s else 60.0
    if start_s < least_s and first_s < least_first_s:
        return None
    seconds = max(start_s, first_s)
    what = "until the first batch is there" if first_s >= start_s / 2 else "before the first step"
    what += _since_or_until_loader(evidence, began_ns, start_s, first_s)
    share = min(seconds / max(all_s, 1e-9), 1.0)
    of_all = f", {share:.0%} of all its time," if share >= SERIOUS else ""
    return evidence.finding(
        f"{seconds:.0f} s{of_all} pass {what}",
        seconds,
        {
            "seconds_to_steady_steps": start_s,
            "seconds_to_first_batch": first_s,
            "share_of_all_time": share,
        },
        remedies=(_SOONER_FIRST_BATCH if first_s >= start_s / 2 else _LESS_BEFORE_TRAINING,),
        # Time before training is paid once, so it is seldom more than a warning.
        severity="serious" if share >= 0.5 else "warning" if share >= 0.01 else "info",
    )


def _since_or_until_loader(
    evidence: Evidence, began_ns: int, start_s: float, first_s: float
) -> str:
    """Return how much of the start is before the line that constructs the loader, if it is most."""
    loader = evidence.loader
    if loader is None or not loader.place or first_s >= start_s / 2:
        return ""
    before_s = (loader.created_ns - began_ns) / 1e9
    if before_s < start_s / 2:
        return f", most of it after the loader{loader.place} was constructed"
    return f", {before_s:.0f} of them before the loader{loader.place} is constructed"


def _first_batch_s(evidence: Evidence) -> float:
    """Return the wait for the first training batch, in seconds; 0 if not recorded."""
    if evidence.loader is None:
        return 0.0
    first = evidence.fetches.having(batch=0, epoch=0, loader=evidence.loader.number)
    passed, waits_ns = evidence.other_time.wall.passed_over, first["wait_ns"].astype(np.int64)
    for place, begin_ns in enumerate(first["start_ns"]):
        if passed is not None:  # within this wait, by a library
            within = (passed.start_ns >= begin_ns) & (passed.start_ns < begin_ns + waits_ns[place])
            waits_ns[place] -= passed.wall_ns[within].sum()
    return float(waits_ns.max(initial=0)) / 1e9


# Their effect depends on the length of the run, so nothing is predicted.
_SOONER_FIRST_BATCH = Remedy(
    name="sooner-first-batch",
    change="a first batch that comes sooner",
    how="Pack the data into shards, whose index is read instead of listing files; open files and "
    "models in worker_init_fn alone; begin with fewer workers, or fork them before the process is "
    "large.",
)
_LESS_BEFORE_TRAINING = Remedy(
    name="less-before-training",
    change="less to do before training",
    how="Keep what is computed before the first step, such as lists of files, statistics, compiled "
    "models, in files; download weights once a host; import what training does not need later.",
)


_MODEL_PHASES = ("forward", "backward", "sync", "optimizer")
_WAITS_FOR_OTHERS = ("backward", "sync")
"""Phases in which a rank waits for another one."""
_FEWEST_TOGETHER, _FEW_APART, _SLOWER = 10, 0.1, 1.2
"""Outliers are of one time if they are so many, and if the median of the steps between them, but
for some at either end, is so much longer than that of the others."""
_FEWEST_IN_RHYTHM = 3
_EXACT_BELOW = 10
"""A period shorter than this must hold exactly; a longer one may be off by a step."""


@rule
def check_step_outliers(evidence: Evidence) -> Finding | None:
    """Some steps take far longer than the others: checkpoints, evaluation, garbage collection.

    A step is an outlier when it takes at least 1.5 times the median and is five robust
    deviations (1.48 times the median deviation) above it; what a step waits longer for data
    because an iteration begins in it does not count. Fires with at least two of them that cost at
    least 5 % of all step time. Where others fill the host's cores, they cause irregular outliers
    in the model's own phases, which are not reported. Where they do so at times, and no line runs
    in these steps alone, they are named. Where most outliers follow each other in the model's own
    phases, the same code ran slower for a time, on other cores or at a lower clock: without an
    accelerator that is information alone.

    Ranks that sync gradients wait in backward for the one of them that evaluates or saves: the
    phase, the period and the line are those of the rank that spent most of such steps itself,
    outside of backward and sync.

    The line is the one that ran then and does not run in every step: an evaluation calls the
    model, as training does, so the line that calls it is named, and its function. If every step
    runs all of it alike, no line is.
    """
    if not evidence.enough or evidence.steps.starts_loader.all():
        return None
    steps = _without_begins(evidence.steps)
    wall = steps.wall_ns
    usual = wall[~steps.starts_loader]
    median = float(np.median(usual))
    deviation = 1.48 * float(np.median(np.abs(usual - median)))
    outliers = wall >= max(1.5 * median, median + 5.0 * deviation)
    excess = np.where(outliers, wall - median, 0.0)
    share = float(excess.sum() / max(evidence.steps.wall_ns.sum(), 1.0))
    if outliers.sum() < 2 or share < WARNING:
        return None
    at_fault = outliers & (steps.rows["rank"] == _rank_at_fault(steps, outliers))
    phase = _phase(steps, at_fault)
    if phase == "data_wait":  # other rules look at the loader
        return None
    every = _period(steps, at_fault, phase)
    if every is None and evidence.others_fill_cores and phase in _MODEL_PHASES:
        return None
    cause = _outlier_cause(evidence, at_fault, phase)
    is_unexplained = cause is None and phase in _MODEL_PHASES
    others = is_unexplained and _others_slow(evidence, at_fault, phase)
    stretch = _stretch(steps, at_fault) if is_unexplained and every is None and not others else None
    times = float(wall[outliers].mean() / max(median, 1.0))
    gain, how = predict_without(evidence, excess), "Do it less often, or in the background."
    remedy = predicted_remedy("outliers", "no such steps", gain, how)
    if others:
        how = f"{evidence.who_takes_cores} take the cores at times: move those, or this one."
        remedy = predicted_remedy("own-cores", "cores of its own", gain, how)
    lost = share * evidence.steps.total_seconds
    return evidence.finding(
        f"{int(outliers.sum()):,} of {len(steps):,} steps take {times:.1f} times as long as "
        f"the others ({_when(every, cause, stretch, others=others)})",
        lost,
        {
            "outliers": int(outliers.sum()),
            "steps": len(steps),
            "median_ms": median / 1e6,
            "outlier_ms": float(wall[outliers].mean() / 1e6),
            "phase": phase,
            "every_steps": every,
        },
        cause=cause,
        remedies=() if stretch is not None else (remedy,),
        severity=_outlier_severity(evidence, lost, stretch, others=others),
    )


def _when(
    every: int | None, cause: Cause | None, stretch: tuple[int, int] | None, *, others: bool
) -> str:
    """Return when slow steps come, and what runs in them."""
    if others:
        return "while other processes take its cores"
    if stretch is not None:
        first, last = stretch
        return f"from step {first:,} to {last:,}, in which the same code ran slower"
    where = f", {'in' if cause.name else 'at'} {cause}" if cause is not None else ""
    return (f"every {every} steps" if every else "at irregular steps") + where


def _outlier_severity(
    evidence: Evidence, lost: float, stretch: tuple[int, int] | None, *, others: bool
) -> Severity | None:
    """Return a finding's severity: a host's cores are slower for a time, and no script mends it."""
    if stretch is not None and evidence.steps.device is None:
        return "info"
    return "warning" if others else evidence.severity(lost)


def _stretch(steps: TrainSteps, outliers: Flags) -> tuple[int, int] | None:
    """Return the first and last step of a time with most of one rank's outliers, slower as a whole.

    None if there are few, or if the usual step between them takes about as long as one elsewhere.
    """
    mine = steps.rows["rank"] == steps.rows["rank"][outliers][0]
    order = np.argsort(steps.rows["step"][mine], kind="stable")
    numbers, wall = steps.rows["step"][mine][order], steps.wall_ns[mine][order]
    places = np.flatnonzero(outliers[mine][order])
    alone = int(_FEW_APART * len(places))
    first, last = places[alone], places[-1 - alone]
    elsewhere = np.append(wall[:first], wall[last + 1 :])
    if min(len(places), len(elsewhere)) < _FEWEST_TOGETHER:
        return None
    is_slower = np.median(wall[first : last + 1]) >= _SLOWER * np.median(elsewhere)
    return (int(numbers[first]), int(numbers[last])) if is_slower else None


def _without_begins(steps: TrainSteps) -> TrainSteps:
    """Return steps without what those in which an iteration begins wait beyond the usual."""
    wait_ns, begins = steps.phase_ns("data_wait"), steps.starts_loader
    beyond = np.where(begins, np.maximum(wait_ns - np.median(wait_ns[~begins]), 0.0), 0.0)
    rows = dict(steps.rows)
    for name in ("wall_ns", "data_wait_ns"):
        rows[name] = (rows[name] - beyond).astype(rows[name].dtype)
    return replace(steps, rows=Columns(rows))


def _rank_at_fault(steps: TrainSteps, outliers: Flags) -> int:
    """Return the rank whose own time in such steps is longest, without waits for others."""
    own = [phase for phase in PHASES if phase not in _WAITS_FOR_OTHERS]
    spent = np.sum([steps.phase_ns(phase) for phase in own], axis=0)
    longer = spent - np.median(spent[~outliers])
    of_rank = {
        rank: float(longer[outliers & (steps.rows["rank"] == rank)].sum())
        for rank in steps.of(outliers).ranks
    }
    return max(of_rank, key=lambda rank: of_rank[rank])


def _phase(steps: TrainSteps, outliers: Flags) -> str:
    """Return the phase with most of the excess of one rank's outliers."""
    usual = (steps.rows["rank"] == steps.rows["rank"][outliers][0]) & ~outliers
    if not usual.any():  # all steps of this rank are long
        usual = ~steps.starts_loader
    excess = {
        phase: float(
            steps.phase_ns(phase)[outliers].mean() - np.median(steps.phase_ns(phase)[usual])
        )
        for phase in PHASES
    }
    return max(excess, key=lambda phase: excess[phase])


def _period(steps: TrainSteps, outliers: Flags, phase: str) -> int | None:
    """Return every how many steps one rank's outliers come; None if irregular."""
    spent = steps.phase_ns(phase)
    # A step that was slow by chance differs: in another phase, or not as long in this one.
    late = steps.wall_ns - np.median(steps.wall_ns[~outliers])
    there = outliers & (spent - np.median(spent[~outliers]) >= 0.5 * late)
    if there.sum() < _FEWEST_IN_RHYTHM:  # their time is spread over phases
        there = outliers
    long = there & (spent >= 0.5 * float(np.median(spent[there])))
    numbers = steps.rows["step"][long]
    gaps = np.diff(np.sort(numbers))
    if len(gaps) < _FEWEST_IN_RHYTHM - 1:
        return None
    usual = int(np.median(gaps))
    # An outlier may be in a step that does not count, so gaps may be several periods.
    off = np.abs(gaps / max(usual, 1) - np.round(gaps / max(usual, 1))) * usual
    regular = off <= (1.0 if usual >= _EXACT_BELOW else 0.01)
    return usual if usual > 1 and bool(np.mean(regular) >= 0.8) else None


def _outlier_cause(evidence: Evidence, outliers: Flags, phase: str) -> Cause | None:
    slow = evidence.steps.of(outliers)
    times = {rank: slow.times_of(rank) for rank in slow.ranks}
    if evidence.slow_samples:
        (rank,) = slow.ranks
        every, all_slow = (
            [sample for sample in samples if sample.rank == rank]
            for samples in (evidence.rank_samples, evidence.slow_samples)
        )
        return cause_of_slow_steps(_slow_in_phase(evidence, outliers, phase), every, all_slow)
    in_phase = [sample for sample in evidence.rank_samples if sample.phase == phase]
    usual = {
        frame
        for sample in evidence.rank_samples
        if sample.phase != phase
        for frame in sample.frames
    }
    seen = samples_during(in_phase, times)
    return find_cause([cut_to_special_line(sample, usual) for sample in seen])


def _slow_in_phase(evidence: Evidence, outliers: Flags, phase: str) -> list[StackSample]:
    """Return the samples of one rank's outliers in a phase."""
    slow = evidence.steps.of(outliers)
    times = {rank: slow.times_of(rank) for rank in slow.ranks}
    return samples_during((each for each in evidence.slow_samples if each.phase == phase), times)


def _others_slow(evidence: Evidence, outliers: Flags, phase: str) -> bool:
    """Return whether other programs make one rank's outliers slow."""
    (rank,) = evidence.steps.of(outliers).ranks
    times = evidence.steps.of(outliers).times_of(rank)
    return are_others_at_fault(evidence, _slow_in_phase(evidence, outliers, phase), times)


_MATTERS, _ALIKE = 0.05, 0.5
_COMPUTING = ("forward", "backward", "optimizer", "other")
_OWN_PHASES = ("data_wait", "copy", "forward", "backward", "optimizer", "other")


@rule
def check_slow_rank(evidence: Evidence) -> Finding | None:
    """One rank is slower than the others, and all wait for it.

    Fires where a rank's own time in a step (without gradient sync, and without backward where
    sync was not measured apart, as waiting for others hides there) is at least 10 % above the
    median of all ranks, and the difference is at least 5 % of step time.

    Its host or its device is at fault where all that it computes takes longer: each phase of
    these that is a twentieth of its time by at least half of what the rank is slower. Else one
    phase is, and the line where the rank is then.
    """
    steps = evidence.steps
    if not evidence.enough or len(steps.ranks) < 2:
        return None
    counted = steps.of(steps.rows["sync_measured"] > 0)
    is_measured = counted.ranks == steps.ranks  # not in a short span, where few steps are
    counted = counted if is_measured else steps
    phases = [phase for phase in _OWN_PHASES if phase != "backward" or is_measured]
    of_rank = {rank: counted.of(counted.rows["rank"] == rank) for rank in counted.ranks}
    own = {rank: sum(_mean(each, phase) for phase in phases) for rank, each in of_rank.items()}
    slow = max(own, key=lambda rank: own[rank])
    usual = float(np.median([value for rank, value in own.items() if rank != slow]))
    excess = own[slow] - usual
    step_ns = float(counted.wall_ns.mean())
    if own[slow] < 1.1 * usual or excess < WARNING * step_ns:
        return None
    excess_of = {
        phase: _mean(of_rank[slow], phase)
        - float(np.median([_mean(each, phase) for rank, each in of_rank.items() if rank != slow]))
        for phase in phases
    }
    phase = max(excess_of, key=lambda name: excess_of[name])
    kind = {"data_wait": "data", "copy": "copy"}.get(phase, "compute")
    means = {phase: _mean(of_rank[slow], phase) for phase in _OWN_PHASES}
    if kind == "compute" and _all_slower(own[slow], usual, means, excess_of):
        kind = "host"
    cause = _slow_rank_cause(evidence, slow, phase) if kind != "host" else None
    # All ranks wait for it, so each step gets shorter by the difference.
    gain = predict_without(evidence, steps.wall_ns * min(excess / step_ns, 0.99))
    change = f"rank {slow} as fast as the others"
    where = f", {'in' if cause.name else 'at'} {cause}" if cause is not None else ""
    return evidence.finding(
        f"rank {slow} needs {own[slow] / max(usual, 1.0):.1f} times as long for a step as "
        f"the others: {_WHAT[kind]}{where}",
        excess / step_ns * steps.total_seconds,
        {
            "rank": slow,
            "own_ms": own[slow] / 1e6,
            "others_ms": usual / 1e6,
            "kind": kind,
            "phase": phase,
            "phase_excess_ms": excess_of[phase] / 1e6,
        },
        cause=cause,
        remedies=(predicted_remedy("even-ranks", change, gain, _HOW[kind]),),
    )


_WHAT = {
    "data": "it waits for data longer",
    "copy": "it copies to the device longer",
    "compute": "it computes longer",
    "host": "all that it computes takes longer, so its host or its device is slower",
}
_HOW = {
    "data": "Look at what its loader reads, and at the disk, the network and the other jobs of its "
    "host: the other ranks have theirs in time.",
    "copy": "Look at what it copies, and at its host's link to the device.",
    "compute": "Look at what it does there and the others do not: longer samples, logging, checks.",
    "host": "Look at its host and its device: other jobs there, a clock that is throttled, another "
    "model of either. Leave it out, or give it less to do.",
}


def _all_slower(
    own: float, usual: float, mean_of: Mapping[str, float], excess_of: Mapping[str, float]
) -> bool:
    """Return whether each phase that computes is slower, and by about as much."""
    slower = own / max(usual, 1.0) - 1.0
    phases = [name for name in _COMPUTING if mean_of.get(name, 0.0) >= _MATTERS * own]
    return len(phases) > 1 and all(
        excess_of.get(name, 0.0) >= _ALIKE * slower * (mean_of[name] - excess_of.get(name, 0.0))
        for name in phases
    )


def _mean(steps: TrainSteps, phase: str) -> float:
    return float(steps.phase_ns(phase).mean()) if len(steps) else 0.0


def _slow_rank_cause(evidence: Evidence, rank: int, phase: str) -> Cause | None:
    """Return where the slow rank is in that phase; if it waits for data, where batches are made."""
    if phase == "data_wait" and evidence.making_samples:
        cause = find_cause(sample for sample in evidence.making_samples if sample.rank == rank)
        loader = evidence.loader
        return cause if cause is None or loader is None else loader.calling(cause)
    return find_cause(
        sample for sample in evidence.rank_samples if sample.phase == phase and sample.rank == rank
    )


def _fewest_and_most(ranks: Ints) -> tuple[int, int]:
    """Return how often the rarest and the most frequent rank stand in an array."""
    _, counts = np.unique(ranks, return_counts=True)
    return int(counts.min()), int(counts.max())


def _are_equal(least: int, most: int) -> bool:
    return most - least < max(3, 0.02 * most)


def _comparable_ranks(evidence: Evidence) -> Ints:
    """Return the rank of each step that ended before the records of a rank may go on."""
    steps = evidence.steps
    ranks, ends_ns = steps.rows["rank"], steps.rows["start_ns"] + steps.rows["wall_ns"]
    ended = np.unique(evidence.events.having(kind=RANK_ENDED)["rank"])
    common_ns = min(int(ends_ns[ranks == rank].max()) for rank in steps.ranks)
    if np.isin(steps.ranks, ended).all() or int(ends_ns.max()) - common_ns >= _LATE_NS:
        return np.asarray(ranks)
    return np.asarray(ranks[ends_ns <= common_ns])


_EQUAL_SHARES = Remedy(
    name="equal-shares",
    change="the same number of batches on every rank",
    how="Use DistributedSampler(drop_last=True), or headrace.DataLoader, which shares out the "
    "tail.",
)


@rule
def check_unequal_steps(evidence: Evidence) -> Finding | None:
    """Ranks take different numbers of steps, so some end while others wait for them.

    Fires where the numbers differ by at least 3 and 2 %: a run that was stopped differs by a step.
    While a run goes on, its ranks are compared up to where the records of all of them reach: those
    of another host arrive later, by up to some seconds.
    """
    steps = evidence.steps
    if not evidence.enough or len(steps.ranks) < 2:
        return None
    least, most = _fewest_and_most(steps.rows["rank"])
    if _are_equal(least, most) or _are_equal(*_fewest_and_most(_comparable_ranks(evidence))):
        return None
    return evidence.finding(
        f"ranks take between {least:,} and {most:,} steps",
        (most - least) * float(steps.wall_ns.mean()) / 1e9,
        {"fewest_steps": least, "most_steps": most, "ranks": len(steps.ranks)},
        remedies=(_EQUAL_SHARES,),
        severity="warning",
    )
