"""What is known of a run's time outside of its steps: evaluation, between epochs, open waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.source_location import CodeFolders
from headrace.observe.doctor.evaluation_ends import with_evaluation_ends
from headrace.observe.doctor.late_imports import with_imports_as_start
from headrace.observe.doctor.model_between_epochs import with_evaluation_between
from headrace.observe.doctor.stack_samples import StackSample, end_ns_of, read_stack_samples
from headrace.observe.doctor.training_loader import TrainingLoader, training_loader
from headrace.observe.whatif.measured_pipeline import BatchWork, loader_rows, read_batch_work
from headrace.observe.whatif.tables import Columns, Ints, Tables, columns, covered_before
from headrace.observe.whatif.train_steps import TrainSteps
from headrace.observe.whatif.wall_time import TimePart, WallTime, read_wall_time

_SAMPLED_PARTS: tuple[TimePart, ...] = ("evaluation", "batch_lists", "between", "open")
_LEAST_OUTSIDE = 0.05
"""Where less of a run's time is outside of its steps, no rule looks at the stacks of then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTime:
    """What is known of a run's time outside of its steps; see `WallTime`."""

    wall: WallTime
    evaluation_loader: TrainingLoader | None  # the one that evaluation takes longest with
    evaluation_work: BatchWork | None  # the batches made for it; None if none were recorded
    evaluation_batches: Columns  # the same with each worker's first: rows of `batches`
    passed_over_loader: TrainingLoader | None
    batch_lists_loader: TrainingLoader | None
    samples: tuple[StackSample, ...]  # of ranks and workers, if that time matters
    unix_offset_ns: int  # from the host's clock to nanoseconds since 1970; 0 if unknown


def gather_other_time(
    tables: Tables,
    steps: TrainSteps,
    in_steps: tuple[StackSample, ...],
    since_s: float | None,
    folders: CodeFolders,
) -> OtherTime:
    """Return what is known of a run's time outside of its steps.

    Args:
        tables: Of the run.
        steps: Its steps.
        in_steps: Stack samples of its ranks, with the part of their time that is in steps.
        since_s: When recording began, in seconds on the clock of source files' times.
        folders: Those of its code.
    """
    wall, hosts = read_wall_time(tables, steps.kind), columns(tables, "hosts")
    number = wall.evaluation_loader
    passed, kept = (
        -1 if fetched is None else fetched.main_loader
        for fetched in (wall.passed_over, wall.batch_lists)
    )
    loaders = {
        each: training_loader(rows, columns(tables, "library_loaders"), folders)
        for each in (number, passed, kept)
        if (rows := loader_rows(columns(tables, "loaders"), each)) is not None
    }
    samples: tuple[StackSample, ...] = ()
    outside = sum(wall.seconds(part) for part in _SAMPLED_PARTS)
    if outside >= _LEAST_OUTSIDE * wall.run_seconds:  # else they are not worth the memory
        stacks = columns(tables, "stacks")
        before, until = (
            covered_before(*wall.outside_ns, times.astype(np.float64))
            for times in (stacks["start_ns"], end_ns_of(stacks))
        )
        samples = read_stack_samples(stacks, until > before, since_s, folders)
        starts = columns(tables, "startup_stacks")
        open_pids = [each.pid for each in wall.open if each.phase == "start"]
        if not open_pids and steps.recorded == 0 and starts.count:
            open_pids = [int(starts["pid"][_begins(starts).argmax()])]  # a script without steps
        is_open = np.isin(starts["pid"], open_pids) & (starts["samples"] > 0)
        samples += read_stack_samples(starts, is_open, since_s, folders)
        wall = with_evaluation_between(with_imports_as_start(wall, samples), samples)
        wall = with_evaluation_ends(wall, samples, in_steps)
    return OtherTime(
        wall=wall,
        evaluation_loader=loaders.get(number),
        evaluation_work=(read_batch_work(tables, number, wall.evaluation) if number >= 0 else None),
        evaluation_batches=columns(tables, "batches").having(loader=number),
        passed_over_loader=loaders.get(passed),
        batch_lists_loader=loaders.get(kept),
        samples=samples,
        unix_offset_ns=int(hosts["unix_offset_ns"][0]) if hosts.count == 1 else 0,
    )


def _begins(starts: Columns) -> Ints:
    """Return for each row when the first one of its process began."""
    pids, places = np.unique(starts["pid"], return_inverse=True)
    firsts = [starts["start_ns"][starts["pid"] == pid].min() for pid in pids]
    return np.array(firsts, dtype=np.int64)[places]
