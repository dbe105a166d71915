"""Why some steps are slow: the code that runs in them alone, or other programs of the host.

What every step runs is no reason. An evaluation calls the model as training does, so the line that
calls the evaluation is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Cause
from headrace.observe.doctor.gpu_usage import gpu_utilisation
from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.whatif.tables import Floats, Ints

_USUAL = 0.1
"""A line with this part of its share in slow steps, or more, in the usual steps runs in all."""
_EXPLAINS = 0.3
"""Lines that run in slow steps alone explain these if they take this share of their time."""

_HALF_A_SAMPLE_NS = 10e6
"""Samples are 20 ms apart: less is no sample, but what subtracting times leaves."""
_FEWEST_SAMPLES = 3
"""What was seen less often there may be in these steps alone by chance."""


def cause_of_slow_steps(
    slow: Sequence[StackSample], every: Iterable[StackSample], all_slow: Iterable[StackSample]
) -> Cause | None:
    """Return what runs in slow steps alone; None if that is little.

    Args:
        slow: Samples of the slow steps in question, in their longest phase.
        every: All samples of the rank in steps.
        all_slow: Those of them in any slow step, the others being of usual ones.
    """
    total = sum(sample.wall_ns for sample in slow)
    times, seen, apart = _times(slow), _times(every), _times(all_slow)
    usual = {frame: max(ns - apart[frame], 0.0) for frame, ns in seen.items()}
    usual_total = max(usual.pop(None, 0.0), 1.0)
    special = {
        frame
        for frame, wall_ns in times.items()
        if frame is not None
        and frame.line
        and usual.get(frame, 0.0) / usual_total < _USUAL * wall_ns / max(total, 1.0)
    }
    found: defaultdict[Cause, float] = defaultdict(float)
    seen_times = 0
    for sample in slow:
        cause = _special_cause(sample.frames, special, usual)
        if cause is not None:
            found[cause] += sample.wall_ns
            seen_times += int(sample.rows["samples"].sum())
    if seen_times < _FEWEST_SAMPLES or sum(found.values()) < _EXPLAINS * total:
        return None
    functions: defaultdict[tuple[str, str], float] = defaultdict(float)
    for cause, wall_ns in found.items():
        functions[cause.file, cause.function] += wall_ns
    function = max(functions, key=lambda key: functions[key])
    best = max(
        (cause for cause in found if (cause.file, cause.function) == function),
        key=lambda cause: found[cause],
    )
    return Cause(
        file=best.file,
        line=best.line,
        function=best.function,
        library=best.library,
        share=functions[function] / total,
    )


def _times(samples: Iterable[StackSample]) -> defaultdict[StackFrame | None, float]:
    """Return the time in which each frame was on the stack, and of None: all the time."""
    times: defaultdict[StackFrame | None, float] = defaultdict(float)
    for sample in samples:
        for frame in {None, *sample.frames}:
            times[frame] += sample.wall_ns
    return times


def _special_cause(
    frames: Sequence[StackFrame], special: set[StackFrame], usual: Mapping[StackFrame | None, float]
) -> Cause | None:
    """Return the innermost line of the user's that is special, or the caller of shared code.

    If no line of the user's is, the library's function that is called by the outermost one. A line
    that usual steps run apart from the outermost special one is shared, however seldom it was seen
    there: in a short run, chance may leave it out of nearly all of them.
    """
    places = [at for at, frame in enumerate(frames) if frame in special]
    most_ns = usual.get(frames[places[0]], 0.0) + _HALF_A_SAMPLE_NS if places else 0.0
    places = [at for at in places if usual.get(frames[at], 0.0) <= most_ns]
    own = [at for at in places if frames[at].is_user]
    if own:
        first, last = frames[own[0]], frames[own[-1]]
        calls_shared = any(frame.is_user for frame in frames[own[-1] + 1 :])
        if calls_shared and len(own) > 1:
            return Cause(file=first.file, line=first.line, function=frames[own[1]].function)
        return Cause(file=last.file, line=last.line, function=last.function)
    if not places:
        return None
    called = frames[min(places[0] + 1, len(frames) - 1)]
    callers = [frame for frame in frames[: places[0]] if frame.is_user]
    place = callers[-1] if callers else called
    name = f"{called.library} {called.function}" if called.library else called.function
    return Cause(file=place.file, line=place.line, function=name, library=called.library)


_CROWDED_CORES = 0.5
"""Others that use more than this, and clearly more than else, crowd the host's cores."""
_NO_CORE = 0.75
"""A rank that is on a core for less than this part of its usual share waits for one."""


def cores_of_others_during(
    evidence: Evidence, begin_ns: Ints, end_ns: Ints
) -> tuple[float, float, float] | None:
    """Return the cores that others use in some times and else, and the idle ones in these times.

    None if not recorded. The times are ascending and disjoint; ticks that overlap them count.
    """
    system, usage = evidence.system, evidence.usage
    names = [name for name in system if name.startswith("core_") and name.endswith("_percent")]
    if not names or system.count < 2 or not usage.count:
        return None
    order = np.argsort(system["t_ns"])
    ticks: Ints = system["t_ns"][order]
    busy = np.nansum([system[name][order].astype(np.float64) for name in names], axis=0) / 100.0
    others = np.maximum(busy - _run_cores(evidence, ticks), 0.0)
    starts = np.append(ticks[0] - (ticks[1] - ticks[0]), ticks[:-1])
    first = np.searchsorted(end_ns, starts, side="right")
    inside = np.append(begin_ns, np.iinfo(np.int64).max)[first] <= ticks
    if not inside.any() or inside.all():
        return None
    idle = max(evidence.host.cores - float(busy[inside].mean()), 0.0)
    return float(others[inside].mean()), float(others[~inside].mean()), idle


def _run_cores(evidence: Evidence, ticks: Ints) -> Floats:
    """Return the cores that the run's own processes used in each tick."""
    usage = evidence.usage
    middle = (ticks[1:] + ticks[:-1]) / 2  # a process is looked at at some time about the tick
    places = np.searchsorted(middle, usage["t_ns"])
    used = usage["cpu_percent"].astype(np.float64) / 100.0
    summed: Floats = np.zeros(len(ticks))
    np.add.at(summed, places, used)
    return summed


def are_others_at_fault(
    evidence: Evidence, slow: Sequence[StackSample], times: tuple[Ints, Ints]
) -> bool:
    """Return whether other programs take the cores while a rank's steps are slow.

    By the host's cores where these show bursts, or else by a rank without an accelerator that gets
    a core for much less of the time than in its usual steps.
    """
    cores = cores_of_others_during(evidence, *times)
    if cores is not None:
        inside, outside, idle = cores
        if idle >= 1.0:  # there was one left for the rank
            return False
        if inside >= max(_CROWDED_CORES, 1.5 * outside):
            return True
    if evidence.steps.device is not None or gpu_utilisation(evidence) is not None or not slow:
        return False
    rank = slow[0].rank
    every = [sample for sample in evidence.rank_samples if sample.rank == rank]
    usual = _cpu_share(every, [each for each in evidence.slow_samples if each.rank == rank])
    return usual >= 0.5 and _cpu_share(slow) < _NO_CORE * usual


def _cpu_share(samples: Sequence[StackSample], without: Sequence[StackSample] = ()) -> float:
    """Return the share of a core that samples had, without that of some of them."""
    wall_ns = sum(each.wall_ns for each in samples) - sum(each.wall_ns for each in without)
    cpu_ns = sum(each.cpu_ns for each in samples) - sum(each.cpu_ns for each in without)
    return max(cpu_ns, 0.0) / max(wall_ns, 1.0)
