"""What the workers of a stream make and leave out, as it is the part of other workers or ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from headrace.observe.doctor.evidence import SERIOUS, Evidence
from headrace.observe.doctor.findings import Cause
from headrace.observe.doctor.skip_statements import part_statement
from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import StackSample, source_lines_as_run


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedWork:
    """Work of workers on samples of which each keeps one in so many."""

    cause: Cause  # the statement that keeps one of them; its share is of the time of making batches
    fewest: int  # samples of which one is kept: at least two
    most: int  # the same, where ranks share the stream, too

    @property
    def least_share(self) -> float:
        """The share of the time of making batches that is for nothing, at least."""
        return self.cause.share * (1 - 1 / self.fewest)

    @property
    def most_share(self) -> float:
        """The same at most."""
        return self.cause.share * (1 - 1 / self.most)


def skipped_work(evidence: Evidence) -> SkippedWork | None:
    """Return the work that is done again in every worker; None if none is seen."""
    loader, ranks = evidence.loader, len(evidence.steps.ranks)
    if loader is None or loader.style != "iterable":
        return None
    most = max(loader.workers, 1) * max(ranks, 1)
    total_ns = sum(sample.wall_ns for sample in evidence.making_samples)
    if most < 2 or total_ns <= 0:
        return None
    spent: defaultdict[Cause, float] = defaultdict(float)
    for sample in evidence.making_samples:
        statement = _statement_of(sample)
        if statement is not None:
            spent[statement] += sample.wall_ns
    if not spent:
        return None
    cause = max(spent, key=lambda each: spent[each])
    share = min(spent[cause] / total_ns, 1.0)
    if share * (1 - 1 / most) < SERIOUS:
        return None
    fewest = loader.workers if loader.workers > 1 else most
    named = Cause(file=cause.file, line=cause.line, function=cause.function, share=share)
    return SkippedWork(cause=named, fewest=fewest, most=most)


def _statement_of(sample: StackSample) -> Cause | None:
    """Return the outermost statement that leaves out what a sample is seen to make."""
    for frame in sample.frames:
        line = _statement_after(frame, sample.ran_since_s) if frame.is_user else None
        if line is not None:
            return Cause(file=frame.file, line=line, function=frame.function)
    return None


def _statement_after(frame: StackFrame, ran_since_s: float | None) -> int | None:
    source = "".join(source_lines_as_run(frame.file, ran_since_s))
    return part_statement(source, frame.line)
