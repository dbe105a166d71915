"""The rule about a wait that has not ended: since when, where, and in which worker."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from headrace.observe.doctor.evidence import Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.stack_samples import (
    StackSample,
    calls_module,
    cut_to_library,
    find_cause,
)
from headrace.observe.whatif.train_steps import MODEL_PHASES
from headrace.observe.whatif.wall_time import OpenTime

_LEAST_OPEN_S, _OPEN_FACTOR = 10.0, 3.0
_LATEST_NS = 2_500_000_000
"""Stack samples of the last seconds say what a worker was at when the records end."""
_SILENT_NS = 5_000_000_000
_WORKER_LOOP = "_worker_loop"
_WAITS_FOR_OTHERS = ("sync", "backward", "optimizer")
"""Phases in which a rank may wait for another one, which is then at fault."""
_START_NS = 10_000_000_000
"""What a rank that has begun no step was at in the last seconds is where it hangs."""
_FEWEST_PLACES = 3
_COLLECTIVE = re.compile(r"^torch/distributed/")


@rule
def check_open_wait(evidence: Evidence) -> Finding | None:
    """A rank waits for something that has not come: a lock, a read, another rank.

    Fires where a rank has been in the same wait for a batch, or in the same step, for at least
    10 s and three times the longest before when its records end: while it hangs, and after it
    was killed. The line is that of the workers that make batches meanwhile, or else the rank's.
    A rank that asks for no batch for 10 s after it has imported torch is reported, too, with the
    line that it has been at: a dataset's constructor, a barrier, a model that is made. Of several
    ranks the one that waits for no other, as in a collective, is named. What a script did until it
    ended without an error, as by `os._exit(0)`, is no wait.
    """
    late = [
        each
        for each in evidence.other_time.wall.open
        if each.seconds >= max(_LEAST_OPEN_S, _OPEN_FACTOR * each.longest_ns / 1e9)
    ]
    if not late:
        return None
    first = min(late, key=lambda each: (_waits_for_others(evidence, each), each.since_ns))
    samples = [each for each in evidence.other_time.samples if each.rank == first.rank]
    if first.phase == "start" and _runs_models(samples, first):
        return None
    if first.phase == "start":
        return _start_finding(evidence, first, samples, len(late))
    workers, cause = _stuck_workers(samples, first)
    if cause is None:
        cause = _rank_cause(evidence, samples, first)
    waits = first.phase == "data_wait"
    does, ends = "been in one step", "which has not ended"
    if waits:
        does, ends = "waited for its batch", "and has not got it"
    elif not first.phase:
        does, ends = "run no Python", "as if stopped or held by native code"
    elif first.phase == "other":
        does, ends = "been outside of the model", "and has not come back"
    silent = _silent_workers(evidence, samples, first) if waits else []
    rank = f"rank {first.rank}" if evidence.other_time.wall.ranks > 1 else "the script"
    where = f", {'in' if cause.name else 'at'} {cause}" if cause is not None else ""
    if not first.phase and cause is not None:  # where it was before
        where, cause = f"; it was seen last {'in' if cause.name else 'at'} {cause}", None
    plural = "s" if len(workers) > 1 else ""
    who = f" in worker{plural} {' and '.join(map(str, workers))}" if workers else ""
    if silent:
        who += f"; worker{'s' if len(silent) > 1 else ''} {' and '.join(map(str, silent))} "
        who += "ran no Python meanwhile"
    since = _clock_time(evidence, first.since_ns)
    return evidence.finding(
        f"{rank} has {does} for {first.seconds:.0f} s{since}, {ends}{where}{who}",
        first.seconds,
        {
            "rank": first.rank,
            "open_seconds": first.seconds,
            "phase": first.phase,
            "batch": first.batch if waits else None,
            "ranks_waiting": len(late),
            "workers": ", ".join(map(str, workers)) or None,
            "silent_workers": ", ".join(map(str, silent)) or None,
        },
        cause=cause,
        remedies=(_an_end(in_workers=bool(workers)),),
        severity="critical",
    )


def _rank_cause(evidence: Evidence, samples: list[StackSample], first: OpenTime) -> Cause | None:
    """Return where a rank has been since then: of a library's trainer, the library's function."""
    since_ns = first.since_ns - (0 if first.phase else _LATEST_NS)
    usual = {
        frame
        for each in evidence.rank_samples
        if each.phase in MODEL_PHASES
        for frame in each.frames
    }
    return find_cause(
        cut_to_library(sample, usual)
        for sample in _since(samples, since_ns)
        if sample.rows["worker"][0] < 0
    )


def _waits_for_others(evidence: Evidence, each: OpenTime) -> bool:
    """Return whether a rank waits for another one: by its phase, or as it is in a collective."""
    if each.phase in _WAITS_FOR_OTHERS:
        return True
    own = (
        sample
        for sample in evidence.other_time.samples
        if sample.rank == each.rank and sample.rows["worker"][0] < 0
    )
    late = _since(own, max(each.since_ns, each.until_ns - _START_NS))
    waits = sum(sample.wall_ns for sample in late if sample.passes(_COLLECTIVE))
    return waits >= 0.5 * sum(sample.wall_ns for sample in late) > 0


def _runs_models(samples: list[StackSample], first: OpenTime) -> bool:
    """Return whether a rank without steps goes on: it is at different places of a model.

    Such as inference without a loader. Where it hangs in a model, it stays at one.
    """
    late = _since(samples, first.until_ns - max(_START_NS, (first.until_ns - first.since_ns) // 2))
    return sum(map(calls_module, late)) >= _FEWEST_PLACES


def _start_finding(
    evidence: Evidence, first: OpenTime, samples: list[StackSample], ranks_waiting: int
) -> Finding:
    """Return the finding about a rank that has begun no step."""
    late = _since(samples, first.until_ns - _START_NS)
    cause = find_cause(late)
    rank = f"rank {first.rank}" if evidence.other_time.wall.ranks > 1 else "the script"
    title = f"{rank} has begun no step for {first.seconds:.0f} s"
    title += _clock_time(evidence, first.since_ns)
    stays_s = first.seconds
    if cause is not None and cause.place:
        stays_s = (first.until_ns - _there_since(samples, cause, first.since_ns)) / 1e9
        wall_ns = sum(sample.wall_ns for sample in late)
        works = sum(sample.cpu_ns for sample in late) >= 0.5 * wall_ns
        does = "computed" if works else "waited"
        title += f"; it has {does} for {stays_s:.0f} s {'in' if cause.name else 'at'} {cause}"
        title += _collective(late)
    how = (
        "All ranks have to reach init_process_group, a barrier or another collective: look what "
        "the others do. Give locks, reads and downloads a time limit. Keep what is computed before "
        "the first step in files."
    )
    return evidence.finding(
        title,
        first.seconds,
        {
            "rank": first.rank,
            "open_seconds": first.seconds,
            "phase": first.phase,
            "seconds_there": stays_s,
            "ranks_waiting": ranks_waiting,
        },
        cause=cause,
        remedies=(Remedy(name="end-of-wait", change="an end to the wait", how=how),),
        severity="critical",
    )


def _collective(samples: Iterable[StackSample]) -> str:
    """Return the collective that a rank was in longest, to be read after a place, or nothing."""
    longest = max(samples, key=lambda sample: sample.wall_ns)
    names = [
        frame.function
        for frame in longest.calls
        if _COLLECTIVE.search(frame.module_file) and "logger" not in frame.module_file
    ]
    return f", in torch.distributed's {names[0]}" if names else ""


def _there_since(samples: Iterable[StackSample], cause: Cause, since_ns: int) -> int:
    """Return since when the function of a cause has been under way without a break."""
    for sample in samples:
        if not any(
            frame.file == cause.file and cause.function.startswith(frame.function)
            for frame in sample.frames
        ):
            since_ns = max(since_ns, int(sample.rows["end_ns"].max()))
    return since_ns


def _an_end(*, in_workers: bool) -> Remedy:
    how = "Give reads, locks and queues a time limit."
    if in_workers:
        how = (
            "A lock that a thread held as workers were forked is never let go in them: start "
            'workers by multiprocessing_context="spawn". Give reads a time limit. '
            "headrace.DataLoader replaces a worker that exceeds its deadline, and names the sample."
        )
    return Remedy(name="end-of-wait", change="an end to the wait", how=how)


def _since(samples: Iterable[StackSample], since_ns: int) -> list[StackSample]:
    """Return the samples restricted to rows that began at a time or later."""
    seen = [sample.only(sample.rows["start_ns"] >= since_ns) for sample in samples]
    return [sample for sample in seen if sample.rows.count]


def _stuck_workers(
    samples: Iterable[StackSample], first: OpenTime
) -> tuple[list[int], Cause | None]:
    """Return the workers that are making batches in an open wait, and the line of most of them."""
    if first.phase != "data_wait":
        return [], None
    late = _since(samples, first.since_ns)
    last_ns = max((int(sample.rows["end_ns"].max()) for sample in late), default=0)
    of_worker: defaultdict[int, list[StackSample]] = defaultdict(list)
    for sample in late:
        inner = _inside_worker(sample)
        if inner is None:
            continue
        is_last = inner.rows["end_ns"] >= last_ns - _LATEST_NS
        for worker in map(int, np.unique(inner.rows["worker"])):
            mine = inner.only(is_last & (inner.rows["worker"] == worker))
            if worker >= 0 and mine.rows.count:
                of_worker[worker].append(mine)
    causes = {worker: find_cause(seen) for worker, seen in of_worker.items()}
    if not causes:
        return [], None
    places = [cause.place for cause in causes.values() if cause is not None]
    most = max(places, key=places.count)
    stuck = sorted(worker for worker, cause in causes.items() if cause and cause.place == most)
    return stuck, causes[stuck[0]]


def _inside_worker(sample: StackSample) -> StackSample | None:
    """Return a worker's sample where it makes a batch, or is not ready to; None if it is idle.

    A forked worker has its parent's frames, too, and what runs before its first batch, such as
    `worker_init_fn`, counts as idle.
    """
    loops = [place for place, frame in enumerate(sample.frames) if frame.function == _WORKER_LOOP]
    inner = sample.frames[loops[-1] + 1 :] if loops else ()
    if sample.phase == "idle":
        return replace(sample, frames=inner) if any(each.is_user for each in inner) else None
    return replace(sample, frames=inner) if inner else sample


def _silent_workers(
    evidence: Evidence, samples: Iterable[StackSample], first: OpenTime
) -> list[int]:
    """Return the workers that live and have no stack samples: native code holds their interpreter.

    The sampler is a thread of the worker, so it needs the interpreter's lock.
    """
    workers = evidence.processes.having(role="worker", rank=first.rank)
    usage = evidence.usage
    late = usage.where(usage["t_ns"] >= first.until_ns - _LATEST_NS)
    alive = set(late["pid"][late["threads"] > 0].tolist())
    seen = {
        int(pid)
        for sample in _since(samples, first.since_ns)
        for pid in sample.rows["pid"][sample.rows["end_ns"] >= first.until_ns - _SILENT_NS]
    }
    return sorted(
        int(worker)
        for pid, worker, started in zip(
            workers["pid"], workers["worker"], workers["started_ns"], strict=True
        )
        if int(pid) in alive - seen and started < first.until_ns - _SILENT_NS
    )


def _clock_time(evidence: Evidence, at_ns: int) -> str:
    """Return the time of day, to be read after a duration; empty if unknown."""
    offset_ns = evidence.other_time.unix_offset_ns
    if not offset_ns:
        return ""
    return time.strftime(" (%H:%M:%S)", time.localtime((at_ns + offset_ns) / 1e9))
