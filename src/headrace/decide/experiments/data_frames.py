"""Tracked runs as pandas data frames, in Vertex AI's columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.core.errors import UsageError, did_you_mean
from headrace.core.files import write_atomically, write_text_atomically
from headrace.decide.experiments.entry_batch import SUMMARY_TAG
from headrace.decide.experiments.run_target import (
    ARGUMENT_PREFIX,
    ELSEWHERE,
    JOB_PREFIX,
    JOB_RUN_TYPE,
    TEXT_METRIC_PREFIX,
    RunTarget,
    shown_uri,
)
from headrace.decide.experiments.sent_state import SentState
from headrace.decide.experiments.spool import RUNNING, SPOOL
from headrace.decide.experiments.spool_sender import RUN_TYPE_TAG
from headrace.decide.experiments.stored_runs import StoredRun, stored_runs
from headrace.decide.experiments.tracking_store import StoreUnavailableError, TrackingStore

if TYPE_CHECKING:
    import pandas as pd

_Value = TypeVar("_Value")
_FOREIGN_TYPE = "mlflow"  # of runs that others made
OWN_METRICS = ("data_wait_share", "samples_per_s", "cost_usd", "usd_per_1k_samples")
_SYSTEM = "system."  # the beginning of others with a column of their own
_SERIES = "time_series_metric."  # the beginning of columns of time series
_POINT_COLUMNS = ("step", "wall_time")  # of each point of a time series
FIRST_COLUMNS = ("experiment_name", "run_name", "run_type", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run as MLflow has it.

    Attributes:
        metrics: Numbers of which only the last counts: those that `headrace run` measured, and
            the script's, as `script.NAME` where it logged one of these; of runs that others made,
            none.
        text_metrics: Those that are texts, by Vertex AI's functions.
        time_series: Metrics that are time series, each with its last value.
        stored_names: Their names in MLflow, where a number may have a name that was given to both.
        tags: Its tags, MLflow's own among them.
    """

    experiment: str
    name: str
    run_type: str
    state: str
    run_id: str
    started_ms: int
    ended_ms: int | None
    params: dict[str, str]
    metrics: dict[str, float]
    text_metrics: dict[str, str]
    time_series: dict[str, float]
    tags: dict[str, str]
    stored_names: dict[str, str] = field(repr=False)
    uri: str = field(repr=False)

    @classmethod
    def of(cls, uri: str, run: StoredRun) -> Self:
        """Return a run of the store at a tracking URI."""
        summary = _summary_names(run.tags)
        series = {_series_name(n, summary): n for n in run.metrics if n not in summary}
        return cls(
            experiment=run.experiment,
            name=run.name,
            run_type=run.tags.get(RUN_TYPE_TAG, _FOREIGN_TYPE),
            state=run.state,
            run_id=run.run_id,
            started_ms=run.started_ms,
            ended_ms=run.ended_ms,
            params=_params(run.params),
            metrics=_numbers({n: v for n, v in run.metrics.items() if n in summary}),
            text_metrics=_without_prefix(run.tags, TEXT_METRIC_PREFIX),
            time_series={name: run.metrics[each] for name, each in series.items()},
            stored_names=series,
            tags=run.tags,
            uri=uri,
        )

    @classmethod
    def named(cls, uri: str, experiment: str | None, name: str) -> Self:
        """Return the latest run of a name, in any experiment if none is given.

        Raises UsageError where there is none.
        """
        found = [cls.of(uri, each) for each in stored_runs(uri, experiment)]
        run = next((each for each in found if each.name == name), None)
        if run is None:
            where = (
                f"experiment {experiment!r} of {shown_uri(uri)}" if experiment else shown_uri(uri)
            )
            names = [each.name for each in found]
            raise UsageError(f"There is no run {name!r} in {where}.{did_you_mean(name, names)}")
        return run

    @classmethod
    def of_job(cls, folder: Path) -> Self:
        """Return the run of a job, by its folder.

        One with nothing in it where the job is not tracked, or from another machine. Raises
        StoreUnavailableError: MLflow does not have it yet.
        """
        target = RunTarget.readable(folder / SPOOL)
        if target is None or target.tracking_uri == ELSEWHERE:
            empty = StoredRun(
                run_id="", experiment="" if target is None else target.experiment,
                name=folder.name if target is None else target.run_name, state=RUNNING,
                started_ms=0, ended_ms=None, tags={RUN_TYPE_TAG: JOB_RUN_TYPE},
            )  # fmt: skip
            return cls.of(ELSEWHERE, empty)
        uri, run_id = target.tracking_uri, SentState.read(folder / SPOOL).run_id
        experiment = None if target.experiment_id else target.experiment
        for stored in stored_runs(uri, experiment):
            if stored.run_id == run_id:
                return cls.of(uri, stored)
        raise StoreUnavailableError(
            f"{shown_uri(uri)} does not have the job's run {target.run_name!r} yet. What was "
            "logged is kept, and sent once that works: read it then."
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        names = [each.name for each in fields(self) if each.repr]
        return {name: getattr(self, name) for name in names}

    def row(self, *, include_time_series: bool) -> dict[str, Any]:
        """Return its row of `runs_frame`."""
        first = (self.experiment, self.name, self.run_type, self.state)
        row: dict[str, Any] = dict(zip(FIRST_COLUMNS, first, strict=True))
        row |= {f"param.{name}": value for name, value in self.params.items()}
        row |= {f"metric.{name}": text for name, text in self.text_metrics.items()}
        row |= {_column(name): value for name, value in self.metrics.items()}
        if include_time_series:
            series = self.time_series.items()
            row |= {f"{_SERIES}{name}": value for name, value in series}
        return row

    def time_series_frame(self) -> pd.DataFrame:
        """Return its time series: step, wall_time and a column for each, a row a step.

        Of several values of a step the last counts. wall_time is a time in UTC. A series that is
        called like one of these two has the column `time_series_metric.NAME`.
        """
        import pandas as pd

        columns, times = {}, pd.Series(dtype="int64")
        for name, history in self._histories():
            points = pd.DataFrame(history, columns=["step", "at_ms", "value"])
            points = points.sort_values("at_ms", kind="stable").drop_duplicates("step", keep="last")
            points = points.set_index("step")
            columns[f"{_SERIES}{name}" if name in _POINT_COLUMNS else name] = points["value"]
            times = points["at_ms"].combine(times, max, fill_value=0)
        frame = pd.DataFrame(columns).sort_index()
        wall_time = pd.to_datetime(times.sort_index(), unit="ms", utc=True)
        frame.insert(0, _POINT_COLUMNS[1], wall_time)
        return frame.rename_axis(_POINT_COLUMNS[0]).reset_index()

    def _histories(self) -> Iterator[tuple[str, list[tuple[int, int, float]]]]:
        """Yield the name of each time series and its points, as (step, at_ms, value)."""
        if self.time_series:
            store = TrackingStore(self.uri)
            for name in sorted(self.time_series):
                yield name, store.history(self.run_id, self.stored_names[name])


def _summary_names(tags: Mapping[str, str]) -> set[str]:
    """Return the metrics of which only the last value counts; those of a damaged tag are lost."""
    found: set[str] = set()
    for name, text in tags.items():
        if name.startswith(SUMMARY_TAG):
            with suppress(ValueError):
                found.update(json.loads(text))
    return found


def _series_name(stored: str, summary: set[str]) -> str:
    """Return the name that a series was given: see `EntryBatch`."""
    given = stored.removeprefix("series/")
    return given if given in summary else stored


def _numbers(stored: Mapping[str, float]) -> dict[str, float]:
    """Return numbers under the names that they were given, `headrace run`'s before all others."""
    found = _without_prefix(stored, JOB_PREFIX)
    for name, value in stored.items():
        if not name.startswith(JOB_PREFIX):
            given = name.removeprefix("summary/")
            found[f"script.{given}" if given in found else given] = value
    return found


def _without_prefix(given: Mapping[str, _Value], prefix: str) -> dict[str, _Value]:
    """Return the items whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)
    }


def _params(given: Mapping[str, str]) -> dict[str, str]:
    """Return params, those that `headrace run` knows under their own names where these are free."""
    prefixes = ARGUMENT_PREFIX, JOB_PREFIX
    found = {name: value for name, value in given.items() if not name.startswith(prefixes)}
    for name, value in given.items():
        if name.startswith(prefixes):
            found.setdefault(name.partition(".")[2], value)
    return found


def tracked_runs(uri: str, experiment: str | None = None) -> list[TrackedRun]:
    """Return the runs of an experiment, or of all; the latest first."""
    return [TrackedRun.of(uri, each) for each in stored_runs(uri, experiment)]


def runs_frame(
    uri: str, experiment: str | None, *, include_time_series: bool = True,
    and_run: TrackedRun | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return runs, the latest first, a row each; see `headrace.experiments.get_experiment_df`.

    `and_run` is one of them, too, also if the experiment has it not.
    """
    import pandas as pd

    runs = tracked_runs(uri, experiment)
    if and_run is not None and and_run.run_id not in {run.run_id for run in runs}:
        runs.insert(0, and_run)
    rows = [run.row(include_time_series=include_time_series) for run in runs]
    names = sorted({name for row in rows for name in row if name not in FIRST_COLUMNS}, key=_order)
    return pd.DataFrame(rows, columns=[*FIRST_COLUMNS, *names])


def export_runs(
    uri: str, experiment: str | None, *, csv: Path | None, parquet: Path | None
) -> pd.DataFrame:
    """Write `runs_frame` to files, whole or not at all, and return it; raises UsageError."""
    frame = runs_frame(uri, experiment)
    try:
        if csv is not None:
            write_text_atomically(csv, frame.to_csv(index=False))
        if parquet is not None:
            write_atomically(parquet, [_with_one_type(frame).to_parquet(index=False)])
    except OSError as error:
        raise UsageError(f"headrace runs export: {error}") from error
    return frame


def _with_one_type(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame in which a metric that is a text in some runs is one in all, for Parquet."""
    found = frame.copy()
    for name in found.columns:
        if len({type(each) for each in found[name].dropna()}) > 1:
            found[name] = found[name].map(str, na_action="ignore")
    return found


def _column(metric: str) -> str:
    """Return the column of a metric: of what `headrace run` measures, some have their own."""
    is_own = metric in OWN_METRICS or metric.startswith(_SYSTEM)
    return metric if is_own else f"metric.{metric}"


def _order(column: str) -> tuple[int, str]:
    kinds = ("param", "metric", "time_series_metric")
    kind = column.partition(".")[0]
    return (kinds.index(kind) if kind in kinds else len(kinds)), column
