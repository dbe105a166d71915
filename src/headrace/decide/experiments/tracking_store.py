"""An MLflow tracking store, embedded SQLite or a server, as runs are written to it and read.

Errors of MLflow, SQLAlchemy and the network become two of ours: the store cannot be had now, and
the same may succeed later (`StoreUnavailableError`), or it refuses what it was given.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.core.file_lock import lock_within, open_lock_file
from headrace.decide.experiments.run_target import database_file, shown_uri
from headrace.decide.experiments.stored_numbers import logged_number

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ARTIFACTS_FOLDER = "artifacts"
_BESIDE_TAG = "headrace.artifacts_beside_database"
"""Of experiments of a SQLite database whose artifacts are beside it, wherever that is moved."""
_MOVED_EXPERIMENTS = """
    SELECT experiment_id, artifact_location FROM experiments
    JOIN experiment_tags USING (experiment_id) WHERE key = ? AND artifact_location != ?
"""
_MOVE = tuple(
    f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) "  # noqa: S608
    f"WHERE experiment_id = :experiment AND substr({column}, 1, length(:old)) = :old"
    for table, column in (
        ("experiments", "artifact_location"), ("runs", "artifact_uri"),
        ("logged_models", "artifact_location"),
    )
)  # fmt: skip
MOST_METRICS, MOST_PARAMS = 1000, 100
"""In a batch, as MLflow limits them."""
LONGEST_PARAM, LONGEST_NAME, LONGEST_TAG = 6000, 250, 5000
"""Characters of a param's value, of the name of a param or metric, and of a tag, as MLflow limits
them; its newer servers take longer tags."""
_CREATE_S = 60.0  # for another process to create the tables
_READ_S = 5.0  # for another program that has the database for itself
_DEFAULTS = {
    env.MLFLOW_TIMEOUT: "10",
    env.MLFLOW_RETRIES: "1",
    env.MLFLOW_LOGGING_LEVEL: "WARNING",
    env.MLFLOW_QUIET: "true",
}
"""Of MLflow's client, unless the user says otherwise: what cannot be sent stays in the spool, and
of a new database it would print twenty lines."""
_REFUSAL_CODE = "INVALID_PARAMETER_VALUE"
"""MLflow's of what it refuses now and later; a gateway's 400 or 403 may pass, such as a login's."""
_UNWRITABLE = (OverflowError, UnicodeError)  # in an error of MLflow's
_REFUSALS = (ValueError, TypeError, OverflowError, ImportError)
"""Errors of what cannot be written, now and later, such as for want of the store's own library."""


class StoreUnavailableError(HeadraceError):
    """The store cannot be reached or written now; the same may succeed later."""


class StoreRefusalError(HeadraceError):
    """The store refuses what it was given, now and later."""


@dataclass(slots=True)
class Batch:
    """What is logged at once: params and tags by name; metrics as (name, value, at_ms, step)."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)


class TrackingStore:
    """A tracking store, opened; a database is created if needed.

    Args:
        uri: Its tracking URI.
        has_process: Whether this process is for the store alone, to write to it, so that the
            settings of MLflow's client may stay. Otherwise it has them for each call, and less
            patience than by itself.

    Raises StoreUnavailableError, StoreRefusalError.
    """

    def __init__(self, uri: str, *, has_process: bool = False) -> None:
        self.uri = uri
        if has_process:
            env.change(_unset_defaults())
        with self._errors(), _database_locked(uri):
            _read_database(uri)
            self._client = _open(uri)
            if has_process:
                _move_artifact_places(uri)

    def experiment_id(self, name: str) -> str:
        """Return the id of an experiment, which is created if needed."""
        with self._errors():
            found = self._client.get_experiment_by_name(name)
            if found is not None and found.lifecycle_stage == "deleted":
                raise StoreRefusalError(
                    f"Experiment {name!r} was deleted from {shown_uri(self.uri)}. Restore it "
                    "(mlflow experiments restore), or log to another."
                )
            if found is None:
                return self._create_experiment(name)
            return str(found.experiment_id)

    def _create_experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        folder = _artifacts_folder(self.uri)
        try:
            tags = {} if folder is None else {_BESIDE_TAG: "true"}
            return str(self._client.create_experiment(name, folder, tags))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = self._client.get_experiment_by_name(name)  # another process was faster
            if found is None:
                raise
            return str(found.experiment_id)

    def run_named(self, experiment_id: str, name: str) -> Run | None:
        """Return the latest run of a name; None if there is none."""
        return self._first_run(experiment_id, f"attributes.run_name = {_quoted(name)}")

    def run_tagged(self, experiment_id: str, tag: str, value: str) -> Run | None:
        """Return the latest run with a tag of a value; None if there is none."""
        return self._first_run(experiment_id, f"tags.`{tag}` = {_quoted(value)}")

    def _first_run(self, experiment_id: str, condition: str) -> Run | None:
        with self._errors():
            found = self._client.search_runs([experiment_id], condition, max_results=1)
            return found[0] if found else None

    def create_run(self, experiment_id: str, name: str, at_ms: int, tags: Mapping[str, str]) -> Run:
        """Create a run."""
        with self._errors():
            return self._client.create_run(experiment_id, at_ms, dict(tags), name)

    def has_run(self, run_id: str) -> bool:
        """Whether it has a run, which is not deleted."""
        from mlflow.exceptions import MlflowException

        with self._errors():
            try:
                return bool(self._client.get_run(run_id).info.lifecycle_stage == "active")
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return False
                raise

    def run(self, run_id: str) -> Run:
        """Return a run with its params, tags and last metrics."""
        with self._errors():
            return self._client.get_run(run_id)

    def log(self, run_id: str, batch: Batch) -> None:
        """Log a batch, of any length; what the store has already is left as it is."""
        from mlflow.entities import Metric, Param, RunTag

        with self._errors():
            for piece in _pieces(batch.metrics, MOST_METRICS):
                metrics = [Metric(*metric) for metric in piece]
                self._client.log_batch(run_id, metrics=metrics, synchronous=True)
            for params in _pieces(list(batch.params.items()), MOST_PARAMS):
                self._client.log_batch(
                    run_id, params=[Param(*each) for each in params], synchronous=True
                )
            for tags in _pieces(list(batch.tags.items()), MOST_PARAMS):
                self._client.log_batch(
                    run_id, tags=[RunTag(*each) for each in tags], synchronous=True
                )

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        """Copy a file, or what is in a folder, to a folder of the run's artifacts.

        With "" a file goes to the top, and a folder there, too, by its own name.
        """
        with self._errors():
            if path.is_dir() and folder:
                self._client.log_artifacts(run_id, str(path), folder)
            else:
                self._client.log_artifact(run_id, str(path), folder or None)

    def set_status(self, run_id: str, status: str, at_ms: int | None = None) -> None:
        """Set a run's status; `at_ms`: it has ended then."""
        with self._errors():
            if at_ms is None:
                self._client.update_run(run_id, status)
            else:
                self._client.set_terminated(run_id, status, at_ms)

    def runs(self, experiment: str | None = None) -> Iterator[tuple[str, Run]]:
        """Yield the runs of an experiment, or of all, with its name; the latest first."""
        with self._errors():
            experiments = {
                str(each.experiment_id): str(each.name)
                for each in _all_pages(lambda token: self._client.search_experiments(
                    filter_string=f"name = {_quoted(experiment)}" if experiment else None,
                    page_token=token,
                ))
            }  # fmt: skip
            if not experiments:
                return
            runs = _all_pages(
                lambda token: self._client.search_runs(list(experiments), page_token=token)
            )
            for run in runs:
                yield experiments[run.info.experiment_id], run

    def history(self, run_id: str, metric: str) -> list[tuple[int, int, float]]:
        """Return (step, at_ms, value) of each point of a metric, as they were logged."""
        with self._errors():
            points = self._client.get_metric_history(run_id, metric)
            return [(point.step, point.timestamp, logged_number(point.value)) for point in points]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        changes = _unset_defaults()
        before = env.values_of(changes)
        env.change(changes)
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            if _is_refusal(error):
                raise StoreRefusalError(f"{shown_uri(self.uri)}: {_reason(error)}") from error
            raise StoreUnavailableError(
                f"{shown_uri(self.uri)} cannot be used now: {_reason(error)}"
            ) from error
        finally:
            env.change(before)


def _unset_defaults() -> dict[str, str | None]:
    return {each.name: value for each, value in _DEFAULTS.items() if not each.get()}


def _read_database(uri: str) -> None:
    """Read a SQLite database, if there is one; raises sqlite3.Error.

    MLflow tries again and again, for most of a minute.
    """
    file = database_file(uri)
    if file is not None and file.exists():
        with closing(sqlite3.connect(file, timeout=_READ_S)) as database:
            database.execute("SELECT COUNT(*) FROM sqlite_master")


def _open(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    client.search_experiments(max_results=1)  # creates the tables, or says that no server answers
    return client


@contextmanager
def _database_locked(uri: str) -> Iterator[None]:
    """Let one process at a time create the tables of a SQLite database."""
    file = database_file(uri)
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock_file(file.with_name(f".{file.name}.lock"))
    try:
        lock_within(descriptor, _CREATE_S, required=False)
        yield
    finally:
        os.close(descriptor)


def _artifacts_folder(uri: str) -> str | None:
    """Return where an experiment's artifacts go: beside its database; None: as the server says.

    MLflow's own default is a folder of the current one, wherever that is.
    """
    file = database_file(uri)
    return None if file is None else (file.parent / ARTIFACTS_FOLDER).absolute().as_uri()


def _move_artifact_places(uri: str) -> None:
    """Have our experiments' artifacts be beside their database where that was moved or copied to.

    MLflow keeps the absolute places of experiments, runs and models. Raises sqlite3.Error.
    """
    file, folder = database_file(uri), _artifacts_folder(uri)
    if file is None or folder is None or not file.exists():
        return
    with closing(sqlite3.connect(file, timeout=_READ_S)) as database, database:
        moved = database.execute(_MOVED_EXPERIMENTS, [_BESIDE_TAG, folder]).fetchall()
        for experiment_id, known in moved:
            if not _is_same_folder(known, folder):
                names = {"new": folder, "old": known, "experiment": experiment_id}
                for statement in _MOVE:
                    database.execute(statement, names)


def _is_same_folder(one: str, other: str) -> bool:
    """Whether two file URIs are of one folder that is there, such as by a link."""
    paths = [Path(unquote(urlsplit(uri).path)) for uri in (one, other)]
    try:
        return paths[0].samefile(paths[1])
    except OSError:
        return False


def _quoted(text: str) -> str:
    """Return a text as MLflow's filters write it."""
    return '"' + text.replace('"', '\\"') + '"' if "'" in text else f"'{text}'"


def _pieces(values: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (values[at : at + most] for at in range(0, len(values), most))


def _all_pages(page: Any) -> Iterator[Any]:
    token: str | None = None
    while True:
        found = page(token)
        yield from found
        token = found.token
        if not token:
            return


def _is_refusal(error: Exception) -> bool:
    code = getattr(error, "error_code", None)
    if code is not None:
        inner = any(isinstance(each, _UNWRITABLE) for each in _chain(error))
        return bool(code == _REFUSAL_CODE) or inner
    is_answer = isinstance(error, (OSError, json.JSONDecodeError))  # of a network, or no JSON
    return isinstance(error, shutil.Error) or (isinstance(error, _REFUSALS) and not is_answer)


def _reason(error: BaseException) -> str:
    """Return what went wrong in one line, of the error where it began."""
    began = [each for each in _chain(error) if isinstance(each, (sqlite3.Error, OSError))]
    lines = str(began[-1] if began else error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came of, the first of them last."""
    seen: set[int] = set()
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            following += [getattr(each, "orig", None), each.__cause__ or each.__context__]
