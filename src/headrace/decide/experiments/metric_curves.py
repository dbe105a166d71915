"""The metrics of recorded runs as MLflow has them: last values, and time series thinned for charts.

A SQLite database is read directly: MLflow's client makes an object of each of a run's 100,000
points, at a tenth of a millisecond each, where a chart draws a few hundred.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from headrace.core.errors import HeadraceError, RecordsError
from headrace.decide.experiments.run_target import (
    RunTarget,
    RunTargetError,
    database_file,
    shown_uri,
)
from headrace.decide.experiments.sent_state import SentState
from headrace.decide.experiments.spool import SPOOL
from headrace.decide.experiments.stored_numbers import logged_number
from headrace.decide.experiments.stored_runs import is_locked, open_database
from headrace.decide.experiments.tracking_store import TrackingStore

STEP_TIME_PREFIX = "phase_ms/"
"""The beginning of the names of series that `headrace run` makes of each run."""
MOST_POINTS = 300
"""Of a curve: about one for every two pixels of a chart."""
_FEW_POINTS = 4 * MOST_POINTS
"""Of a series with fewer all are read at once, which takes less time than to look for each."""
_LAST = """
    SELECT key, CASE WHEN is_nan THEN NULL ELSE value END
    FROM latest_metrics WHERE run_uuid = ? ORDER BY key
"""
_FIRST_POINTS = """
    SELECT step, CASE WHEN is_nan THEN NULL ELSE value END
    FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step, timestamp DESC LIMIT ?
"""
_LAST_STEP = "SELECT MAX(step) FROM metrics WHERE run_uuid = ? AND key = ?"
_FROM_STEP = """
    SELECT step, CASE WHEN is_nan THEN NULL ELSE value END
    FROM metrics WHERE run_uuid = ? AND key = ? AND step >= ?
    ORDER BY step, timestamp DESC LIMIT 1
"""
_Point: TypeAlias = tuple[int, float | None]
"""A step and its value; None where that is no number."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A time series: whole if it is short, else thinned out evenly by step, with both ends kept.

    Attributes:
        steps: Ascending.
        values: One a step, the last that was logged there; NaN where that is no number.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunCurves:
    """The metrics of a run.

    Attributes:
        last: By name, the last value of each, time series among them.
        curves: By name, those with several steps.
    """

    last: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)


def read_run_curves(
    run: Path, *, only_local: bool = False, unreachable: dict[str, HeadraceError] | None = None
) -> RunCurves:
    """Return the metrics of a recorded run, given its folder; none of a run that is not tracked.

    Args:
        run: Its folder.
        only_local: No server is asked: of a run that is tracked on one there are none.
        unreachable: The servers that could not be reached for runs before this one, by tracking
            URI, and the databases that other programs had for themselves: they are not asked again,
            which would take as long each time.

    Raises RecordsError where they cannot be read now.
    """
    known = {} if unreachable is None else unreachable
    try:
        target = RunTarget.read(run / SPOOL)
    except RunTargetError as error:
        raise RecordsError(f"Where {run.name} is tracked cannot be read: {error}") from error
    run_id = "" if target is None else SentState.read(run / SPOOL).run_id
    if target is None or not run_id:
        return RunCurves()
    uri, database = target.tracking_uri, database_file(target.tracking_uri)
    if only_local and database is None:
        return RunCurves()
    try:
        if uri in known:
            raise known[uri]
        if database is None:
            return _of_store(_store(uri, known), run_id)
        return _of_database(database, run_id)
    except (sqlite3.Error, HeadraceError) as error:
        if is_locked(error):
            known[uri] = RecordsError(str(error))
        why = f"The metrics of {run.name} cannot be read of {shown_uri(uri)}: {error}"
        raise RecordsError(why) from error


def _store(uri: str, unreachable: dict[str, HeadraceError]) -> TrackingStore:
    try:
        return TrackingStore(uri)  # which asks the server something
    except HeadraceError as error:
        unreachable[uri] = error
        raise


def _of_database(database: Path, run_id: str) -> RunCurves:
    with open_database(database) as connection:
        last = {name: logged_number(value) for name, value in connection.execute(_LAST, [run_id])}
        found = {name: _curve(connection, run_id, name) for name in last}
    return RunCurves(last, {name: curve for name, curve in found.items() if len(curve.steps) > 1})


def _curve(connection: sqlite3.Connection, run_id: str, name: str) -> Curve:
    whose = [run_id, name]
    found = connection.execute(_FIRST_POINTS, [*whose, _FEW_POINTS]).fetchall()
    if not found:
        return Curve((), ())
    if len(found) < _FEW_POINTS:
        return _shown(_Points(found).from_step, found)
    last = connection.execute(_LAST_STEP, whose).fetchone()[0]  # found in the index
    return _shown(partial(_from_step, connection, whose), found, last)


def _shown(
    from_step: Callable[[int], _Point | None], points: Sequence[_Point], last: int | None = None
) -> Curve:
    """Return the curve of a series.

    Args:
        from_step: Returns its first point at or after a step.
        points: All of them by step, or the first ones.
        last: Its last step; None: that of `points`.
    """
    first, end = points[0][0], points[-1][0] if last is None else last
    kept: list[_Point] = []
    if len({step for step, _ in points}) <= MOST_POINTS:  # else there is no need to look for each
        kept = list(islice(_each_step(from_step, first, end), MOST_POINTS + 1))
    if not 0 < len(kept) <= MOST_POINTS:
        kept = list(_thinned(from_step, first, end))
    values = tuple(logged_number(value) for _, value in kept)
    return Curve(tuple(step for step, _ in kept), values)


def _from_step(connection: sqlite3.Connection, whose: list[str], step: int) -> _Point | None:
    found: _Point | None = connection.execute(_FROM_STEP, [*whose, step]).fetchone()
    return found


class _Points:
    """Points of a series in memory, by step; of those of one step the first counts."""

    def __init__(self, points: Sequence[_Point]) -> None:
        self._steps = [step for step, _ in points]
        self._points = points

    def from_step(self, step: int) -> _Point | None:
        """Return the first point at a step or after it."""
        place = bisect_left(self._steps, step)
        return self._points[place] if place < len(self._points) else None


def _each_step(
    from_step: Callable[[int], _Point | None], first: int, last: int
) -> Iterator[_Point]:
    """Yield a series' first point of each of its steps."""
    found = from_step(first)
    while found is not None:
        yield found
        found = from_step(found[0] + 1) if found[0] < last else None


def _thinned(from_step: Callable[[int], _Point | None], first: int, last: int) -> Iterator[_Point]:
    """Yield a series' first point at or after each of evenly spaced steps, none of them twice."""
    step = first
    for at in _spaced(range(first, last + 1)):
        if at < step:
            continue  # the point before was that far
        found = from_step(at)
        if found is None:
            return
        yield found
        step = found[0] + 1


def _spaced(steps: range) -> Sequence[int]:
    """Return at most `MOST_POINTS` of them, evenly spaced, the first and the last among them."""
    if len(steps) <= MOST_POINTS:
        return steps
    last = len(steps) - 1  # whole numbers: a step may be a time in ns
    return [steps[place * last // (MOST_POINTS - 1)] for place in range(MOST_POINTS)]


def _of_store(store: TrackingStore, run_id: str) -> RunCurves:
    last = {name: logged_number(value) for name, value in store.run(run_id).data.metrics.items()}
    curves = {}
    for name in sorted(last):
        points = sorted(store.history(run_id, name), key=lambda point: point[:2])
        by_step = list({step: value for step, _, value in points}.items())
        if len(by_step) > 1:
            curves[name] = _shown(_Points(by_step).from_step, by_step)
    return RunCurves(last, curves)


_LOGGED = """
    SELECT step, CASE WHEN is_nan THEN NULL ELSE value END FROM metrics
    WHERE run_uuid = ? AND key = ? AND timestamp BETWEEN ? AND ? ORDER BY step, timestamp
"""


def read_points_between(run: Path, name: str, begin_ms: int, end_ms: int) -> Curve:
    """Return a metric's points that were logged between two moments, in ms since 1970.

    Of a run that is tracked on a server there are none. Raises RecordsError where they cannot be
    read now.
    """
    try:
        target = RunTarget.read(run / SPOOL)
        database = None if target is None else database_file(target.tracking_uri)
        if database is None:
            return Curve((), ())
        wanted = [SentState.read(run / SPOOL).run_id, name, begin_ms, end_ms]
        with open_database(database) as connection:
            by_step = dict(connection.execute(_LOGGED, wanted).fetchall())  # the last of a step
    except (sqlite3.Error, RunTargetError, OSError, ValueError, TypeError) as error:
        raise RecordsError(f"The metric {name} of {run.name} cannot be read: {error}") from error
    steps = tuple(by_step)
    kept = tuple(steps[place] for place in _spaced(range(len(steps))))
    return Curve(kept, tuple(logged_number(by_step[step]) for step in kept))
