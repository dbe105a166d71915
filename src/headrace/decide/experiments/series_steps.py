"""The steps of points of time series, of those without one and of those of another attempt."""

from __future__ import annotations

from headrace.decide.experiments.spool import Entry


def step_of(
    entry: Entry, name: str, last_steps: dict[str, int], attempts: dict[str, tuple[int, int]]
) -> int:
    """Return the step of an entry's point in a series; what is known of the series goes on with it.

    Args:
        entry: Of metrics.
        name: The series'.
        last_steps: By series, the largest step.
        attempts: By series whose steps begin at 0 with each attempt, the last attempt and the step
            at which it began.
    """
    last = last_steps.get(name, -1)
    step = _step(entry, name, last, attempts)
    last_steps[name] = max(step, last)
    return step


def _step(entry: Entry, name: str, last: int, attempts: dict[str, tuple[int, int]]) -> int:
    given, attempt = entry["step"], entry.get("attempt")
    if given is None:
        return last + 1
    if attempt is None:
        return given
    known, begin = attempts.get(name, (attempt, 0))
    if attempt != known:
        begin = last + 1
    attempts[name] = attempt, begin
    return begin + given
