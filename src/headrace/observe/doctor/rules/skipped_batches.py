"""Rules about batches that the training loop skips, and samples that a stream's workers skip.

Of the batches of one step all but the last are skipped if the script asks for the next one at once,
and its source says so (`skip_statements`): without that, `next()` twice in a row looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.observe.doctor.evidence import Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding
from headrace.observe.doctor.remedies import WORTH_IT, predicted_remedy
from headrace.observe.doctor.skip_statements import skip_statement
from headrace.observe.doctor.skipped_work import skipped_work
from headrace.observe.doctor.stack_frames import StackFrame, making_begin
from headrace.observe.doctor.stack_samples import source_lines_as_run
from headrace.observe.doctor.training_loader import TrainingLoader
from headrace.observe.whatif.prediction import PipelineChange
from headrace.observe.whatif.tables import Columns

_LOOK_NS, _LOOK_SHARE = 500_000, 0.05
"""A skipped batch is kept for at most so long, and for at most this share of what the step does
with its last one: that of accumulated gradients is trained on for as long as the others."""
_LEAST_SHARE = 0.05


@rule
def check_skipped_batches(evidence: Evidence) -> Finding | None:
    """The training loop asks for batches and skips them, as `if step % world_size != rank` does.

    Fires where the accelerator waits for data for at least 5 % of step time, at least 5 % of the
    batches that steps ask for are followed at once by the next one, the source of the loop skips
    batches before it does anything with them, and a loader that makes only the others would make
    the run at least 5 % faster.
    """
    loader, simulator = evidence.loader, evidence.simulator
    if loader is None or simulator is None or not evidence.starved:
        return None
    asked, skipped = _count_batches(evidence, loader.number)
    if skipped < _LEAST_SHARE * max(asked, 1):
        return None
    cause = _skipping_line(evidence)
    if cause is None:
        return None
    each = asked / (asked - skipped)  # batches made for one that is trained on
    fewer = PipelineChange(batch_factor=each, service_factor=1 / each)
    prediction = simulator.predict(fewer)
    if prediction.speedup < WORTH_IT:
        return None
    seconds = evidence.steps.total_seconds * (1 - 1 / prediction.speedup)
    change = "a loader that makes only the batches that are trained on"
    return evidence.finding(
        f"{skipped / asked:.0%} of the batches of the loader{loader.place} are skipped, in {cause}",
        seconds,
        {
            "data_wait_share": evidence.steps.data_wait_share,
            "skipped_share": skipped / asked,
            "ranks": len(evidence.steps.ranks),
            "workers": loader.workers,
        },
        cause=cause,
        remedies=(
            predicted_remedy("fewer-batches", change, prediction, _advice(evidence, loader)),
        ),
    )


@rule
def check_skipped_samples(evidence: Evidence) -> Finding | None:
    """Every worker of a stream makes all samples, and keeps its part: one of so many.

    Fires where the accelerator waits for data for at least 5 % of step time, and workers are seen
    for so long at work that is followed by `if number % workers != own: continue`, or is sliced by
    `islice`, that what they leave out takes at least 10 % of the time of making batches.
    """
    found, simulator = skipped_work(evidence), evidence.simulator
    if found is None or simulator is None or not evidence.starved:
        return None
    # Half of it, such as reading what is passed over, may have to stay.
    shares = (found.least_share / 2, found.most_share)
    prediction = simulator.predict(*(PipelineChange(service_factor=1 - each) for each in shares))
    if prediction.speedup < WORTH_IT:
        return None
    cause, how_many = found.cause, f"{found.fewest}"
    if found.most > found.fewest:
        how_many += f" or {found.most}"
    how = (
        f"Decide whose part a sample is before it is made: move what precedes {cause.place} behind "
        "it, or give each worker files or indices of its own. Half to all of what is left out is "
        "taken to go."
    )
    return evidence.finding(
        f"each worker makes {how_many} samples for one that it keeps, in {cause}",
        found.most_share * evidence.flow_wait_seconds,
        {
            "data_wait_share": evidence.steps.data_wait_share,
            "share_of_making": cause.share,
            "workers": evidence.loader.workers if evidence.loader is not None else 0,
            "ranks": len(evidence.steps.ranks),
        },
        cause=cause,
        remedies=(
            predicted_remedy(
                "own-samples", "workers that make only their own samples", prediction, how
            ),
        ),
    )


def _count_batches(evidence: Evidence, loader: int) -> tuple[int, int]:
    """Return how many batches of the loader steps asked for, and how many of these they skipped."""
    steady = evidence.steps.steady.rows.having(loader=loader)
    asked = skipped = 0
    for rank in map(int, np.unique(steady["rank"])):
        steps = steady.having(rank=rank)
        fetches = evidence.fetches.having(rank=rank, loader=loader, ended=0)
        fetches = fetches.where(np.argsort(fetches["start_ns"], kind="stable"))
        counts = _count_of_rank(steps, fetches)
        asked, skipped = asked + counts[0], skipped + counts[1]
    return asked, skipped


def _count_of_rank(steps: Columns, fetches: Columns) -> tuple[int, int]:
    asked_ns, ends_ns = fetches["start_ns"], steps["start_ns"] + steps["wall_ns"]
    if not fetches.count:
        return 0, 0
    had_ns = asked_ns + fetches["wait_ns"]
    firsts, lasts = (np.searchsorted(asked_ns, edge) for edge in (steps["start_ns"], ends_ns))
    own = np.searchsorted(ends_ns, asked_ns, side="right")  # the step of each request
    inside = own < steps.count
    own[~inside] = 0
    inside &= asked_ns >= steps["start_ns"][own]
    used_ns = (ends_ns - had_ns[np.maximum(lasts - 1, 0)])[own]
    kept_ns = np.append(asked_ns[1:] - had_ns[:-1], 0)
    is_last = np.arange(fetches.count) == lasts[own] - 1
    skipped = inside & ~is_last & (kept_ns <= np.minimum(_LOOK_NS, _LOOK_SHARE * used_ns))
    return int((lasts - firsts).sum()), int(skipped.sum())


def _skipping_line(evidence: Evidence) -> Cause | None:
    """Return the statement that skips batches, in the functions seen to wait for one."""
    waiting = (sample for sample in evidence.rank_samples if sample.phase == "data_wait")
    for sample in sorted(waiting, key=lambda sample: -sample.wall_ns):
        for frame in _asking_frames(sample.frames):
            source = "".join(source_lines_as_run(frame.file, sample.ran_since_s))
            line = skip_statement(source, frame.line)
            if line is not None:
                return Cause(file=frame.file, line=line, function=frame.function)
    return None


def _asking_frames(frames: tuple[StackFrame, ...]) -> Iterator[StackFrame]:
    """Yield the script's frames outside of the loader, innermost first."""
    outside = frames[: making_begin(frames) or 0]
    return (frame for frame in reversed(outside) if frame.is_user and frame.line)


def _advice(evidence: Evidence, loader: TrainingLoader) -> str:
    several = len(evidence.steps.ranks) > 1
    if several and loader.style == "map":
        return (
            f"Give {loader.named} sampler=torch.utils.data.DistributedSampler(dataset), with "
            "set_epoch(epoch) as each epoch begins: every rank then makes its own batches alone."
        )
    if several:
        return (
            "Let the dataset's __iter__ yield each rank's own part alone, and of that each "
            "worker's (torch.utils.data.get_worker_info()), before anything is read or decoded."
        )
    return (
        f"Decide before batches are made: give {loader.named} a Subset or a sampler of the samples "
        "that are trained on, or let the dataset choose by what is known without decoding."
    )
