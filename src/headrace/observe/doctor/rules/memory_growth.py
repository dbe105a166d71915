"""The rule memory-growth: memory of a process or of a device grows steadily."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.observe.doctor.evidence import Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.gpu_usage import gpus_of_run
from headrace.observe.doctor.leak_candidates import leak_candidates
from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import (
    StackSample,
    end_ns_of,
    is_newer,
    source_lines_as_run,
)
from headrace.observe.whatif.tables import Columns, Floats

_DEVICE = re.compile(r"gpu_(\d+)_memory_bytes")
_EXPLAINED, _GROWTH_BYTES, _GROWTH_SHARE = 0.9, 64 * 2**20, 0.02
_FEWEST_ROWS = 10
_LONG_S, _LARGE_SHARE, _LARGE_BYTES = 30.0, 0.25, 256 * 2**20
"""Growth that was watched for less than this time may still settle, as that of caches, unless it is
so large a share of the memory, or so many bytes."""
_WHOLE_RUN_SHARE, _PHASES = 0.9, 2
"""A function sampled in this share of a rank's time, and in several phases, holds its loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryOwner:
    """The process or device that memory belongs to; numbers are -1 if it has none, or unknown."""

    name: str
    rank: int = -1
    worker: int = -1
    is_device: bool = False  # which any rank may use


@rule
def check_memory_growth(evidence: Evidence) -> Finding | None:
    """Memory of a process of the run, or of a device, grows all the time.

    Fires where a straight line explains at least 90 % of the variance of memory in use over the
    second half of the steps, and it grows there by at least 64 MiB and 2 % of its mean: caches
    and allocators settle in the first half. In a short run they may take longer: growth of less
    than 30 s, of less than a quarter of the memory and 256 MiB, is information. Other processes on
    the host do not count, nor do pages of mapped files: the kernel reclaims those.

    No stack shows the line that stores what others allocate, as storing takes no time. The
    source of the functions that ran meanwhile shows which of them add to something and never
    empty it: the surest of these lines is named, as likely (see `leak_candidates.py`). No line
    of a file that was written after the run began is named: it may not be what ran.
    """
    if not evidence.enough or evidence.steps.span_ns is None:
        return None
    begin, end = evidence.steps.span_ns
    middle = (begin + end) // 2
    growing = [
        (rate, number, float(seconds[-1]), float(used[half][-1]), owner)
        for number, (owner, t_ns, used) in enumerate(_series(evidence))
        if (half := (t_ns >= middle) & (t_ns <= end)).sum() >= _FEWEST_ROWS
        and (seconds := (t_ns[half] - t_ns[half][0]) / 1e9)[-1] > 0
        and (rate := _rate(seconds, used[half].astype(np.float64))) is not None
    ]
    if not growing:
        return None
    rate, _, watched_s, held, owner = max(growing, key=lambda each: each[:2])
    seen = _samples_since(evidence, owner, middle)
    what, cause = _likely_leak(seen, holds_loop=owner.worker < 0) or ("", None)
    newer = sorted(_newer_files(seen)) if cause is None else []
    where = f", likely kept in {what} at {cause.place}" if cause is not None else ""
    certainty = "likely, told by the source" if cause is not None else "not found"
    if newer:
        certainty = f"not looked for: {', '.join(newer)} changed since"
    may_settle = watched_s < _LONG_S and rate * watched_s < min(_LARGE_SHARE * held, _LARGE_BYTES)
    growth = f"grows by {rate * 60 / 2**20:,.0f} MiB a minute"
    if may_settle:
        growth = f"grew by {rate * watched_s / 2**20:,.0f} MiB in {watched_s:.0f} s"
    return evidence.finding(
        f"memory of {owner.name} {growth}{where}",
        0.0,
        {"growth_mb_per_min": rate * 60 / 1e6, "watched_s": watched_s, "line_at_fault": certainty},
        cause=cause,
        remedies=(Remedy(name="keep-less", change="", how=_advice(owner, what, newer)),),
        severity="info" if may_settle else "serious",
    )


def _series(evidence: Evidence) -> Iterator[tuple[_MemoryOwner, Floats, Floats]]:
    """Yield the series that may grow: owner, times in ns, bytes in use."""
    usage, system = evidence.usage, evidence.system
    for pid in np.unique(usage["pid"]):
        rows = usage.having(pid=pid)
        yield _memory_owner(evidence.processes, int(pid)), rows["t_ns"], rows["resident_bytes"]
    ours = gpus_of_run(evidence)
    for name in system if ours is not None and system.count else ():
        match = _DEVICE.fullmatch(name)
        if match and (not ours or int(match[1]) in ours):
            yield _MemoryOwner(name=f"GPU {match[1]}", is_device=True), system["t_ns"], system[name]


def _memory_owner(processes: Columns, pid: int) -> _MemoryOwner:
    rows = processes.having(pid=pid)
    if not rows.count:
        return _MemoryOwner(name=f"process {pid}")
    rank, worker = int(rows["rank"][-1]), int(rows["worker"][-1])
    name = f"rank {rank}" if worker < 0 else f"worker {worker} of rank {rank}"
    return _MemoryOwner(name=name, rank=rank, worker=worker)


def _samples_since(evidence: Evidence, owner: _MemoryOwner, since_ns: int) -> list[StackSample]:
    """Return the owner's samples since a time; all workers of a rank run the same code."""
    seen = evidence.making_samples
    if owner.worker < 0:  # what an evaluation keeps counts as well
        other = (sample for sample in evidence.other_time.samples if not sample.is_of_worker)
        seen = (*evidence.rank_samples, *other)
    mine = [sample for sample in seen if owner.is_device or sample.rank == owner.rank]
    later = [sample.only(end_ns_of(sample.rows) >= since_ns) for sample in mine]
    return [sample for sample in later if sample.rows.count]


def _likely_leak(seen: list[StackSample], *, holds_loop: bool) -> tuple[str, Cause] | None:
    """Return what most likely grows, and the line that adds to it; None if none is found.

    `holds_loop`: a function of the script runs all the time; a worker's are called for each sample.
    """
    total = sum(sample.wall_ns for sample in seen)
    functions: dict[tuple[str, str], _SeenFunction] = {}
    for sample in seen:
        for depth, frame in enumerate(sample.frames):
            if frame.is_user and frame.line:
                seen_function = _SeenFunction(frame=frame, depth=depth, phases=set())
                functions.setdefault((frame.file, frame.function), seen_function).note(sample)
    found = [
        (growth.certainty, -function.depth, -growth.line, growth.what, function.frame)
        for function in functions.values()
        for growth in leak_candidates(
            "".join(source_lines_as_run(function.frame.file, seen[0].ran_since_s)),
            function.frame.function,
            function.frame.line,
            stays=holds_loop and function.stays(total),
        )
    ]
    if not found:
        return None
    _, _, line, what, frame = max(found, key=lambda each: each[:3])
    return what, Cause(file=frame.file, line=-line, function=frame.function)


def _newer_files(seen: list[StackSample]) -> set[str]:
    """Return the names of the script's files that were written after the run began."""
    return {
        Path(frame.file).name
        for sample in seen
        for frame in sample.frames
        if frame.is_user and is_newer(frame.file, sample.ran_since_s)
    }


@dataclass(slots=True, kw_only=True)
class _SeenFunction:
    """A function of the script in which a process was sampled."""

    frame: StackFrame  # a line of it
    depth: int  # number of frames around it
    phases: set[str]
    wall_ns: float = 0.0
    sample: StackSample | None = None  # the last sample in it: a recursive function counts once

    def note(self, sample: StackSample) -> None:
        """Add a sample, once."""
        if sample is not self.sample:
            self.sample = sample
            self.wall_ns += sample.wall_ns
            self.phases.add(sample.phase)

    def stays(self, total_ns: float) -> bool:
        """Return whether one call of it lasts about as long as the samples."""
        return self.wall_ns >= _WHOLE_RUN_SHARE * total_ns and len(self.phases) >= _PHASES


def _advice(owner: _MemoryOwner, what: str, newer: list[str]) -> str:
    if what:
        return (
            "Keep numbers and not tensors (loss.item()): a loss keeps the graph of its step, with "
            f"what that computed. Empty {what} now and then, or write it to disk."
        )
    known = "No line of the script that ran meanwhile is seen to keep something. "
    if newer:
        known = f"What ran of {', '.join(newer)} is not known: it was written since. "
    if owner.is_device:
        return (
            f"{known}torch.cuda.memory._record_memory_history() and _dump_snapshot() tell who "
            "holds it."
        )
    shared = (
        " A worker also copies what its dataset shares with the rank, page by page as it touches "
        "it: lists of Python objects do that, arrays do not."
    )
    return (
        f"{known}Two snapshots of tracemalloc, some hundred steps apart, tell where Python's "
        "objects come from, and gc.get_objects() which tensors there "
        f"are.{shared if owner.worker >= 0 else ''}"
    )


def _rate(seconds: Floats, used: Floats) -> float | None:
    """Return bytes a second if the growth is steady and large enough."""
    slope, base = np.polyfit(seconds, used, 1)
    growth = slope * (seconds[-1] - seconds[0])
    if growth < max(_GROWTH_BYTES, _GROWTH_SHARE * used.mean()):
        return None
    rest = float(np.square(used - (slope * seconds + base)).sum())
    total = float(np.square(used - used.mean()).sum())
    return float(slope) if rest <= (1.0 - _EXPLAINED) * total else None
