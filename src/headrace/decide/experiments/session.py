"""The functions by which a script logs to runs of an experiment, and reads them back.

    from headrace import experiments
    experiments.init(experiment="resnet")
    with experiments.start_run("base"):
        experiments.log_params({"lr": 0.1})
        experiments.log_time_series_metrics({"loss": loss}, step=step)

Signatures are those of Vertex AI's SDK. In a job of `headrace run` the job's own run is logged to,
by all ranks of the host with the run's folder, and it goes on after a restart.
"""

from __future__ import annotations

import atexit
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import countOf
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, NoReturn, Self

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.decide.experiments.experiment_run import (
    LARGEST_STEP,
    LoggedRun,
    job_folder,
    job_run,
)
from headrace.decide.experiments.run_target import RunTarget, RunTargetError, target_to_go_on
from headrace.decide.experiments.run_target import tracking_uri as uri_of
from headrace.decide.experiments.script_failure import ScriptFailureWatch, ends_well
from headrace.decide.experiments.spool import ENDS, FINISHED, SPOOL, now_ms
from headrace.records.run_folder import RunFolder, is_plain_name, runs_folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ExperimentRun", "autolog", "end_run", "get_experiment_df", "init", "log_artifact",
    "log_metrics", "log_model", "log_params", "log_time_series_metrics", "start_run",
]  # fmt: skip

DEFAULT_EXPERIMENT = "Default"
_RUN_TYPE = "headrace.experiments"
_STEPS = range(-LARGEST_STEP, LARGEST_STEP + 1)


@dataclass
class _Session:
    """What the script has chosen, and the run that it logs to."""

    experiment: str | None = None
    tracking_uri: str | None = None
    tensorboard: bool = True
    run: LoggedRun | None = None
    is_chosen: bool = False  # whether the script started that run itself
    autologs: bool = False
    job: LoggedRun | None = None  # that of the job, which the script has logged to
    first_name: str = ""  # that the script gave it
    names_in_job: set[tuple[str, str]] = field(default_factory=set)  # all, with their experiments
    is_second_reported: bool = False
    failure_watch: ScriptFailureWatch | None = (
        None  # from the first run on that is the script's own
    )

    @property
    def experiment_name(self) -> str:
        return self.experiment or env.MLFLOW_EXPERIMENT_NAME.get() or DEFAULT_EXPERIMENT


_SESSION = _Session()


class NamedRun:
    """A run by its name, to log to while it is under way; see the functions of the same names.

    Each raises UsageError where another run is under way, or none.
    """

    name: str
    experiment: str | None = None  # None: whichever the run under way is of

    def log_params(self, params: Mapping[str, float | int | str]) -> None:
        """Log parameters, which cannot change."""
        self._logged().log_params(params)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log numbers that describe the run; a later value replaces an earlier one."""
        self._logged().log_metrics(metrics)

    def log_time_series_metrics(
        self, metrics: Mapping[str, float], step: int | None = None, wall_time: Any = None
    ) -> None:
        """Log a point of time series."""
        self._logged().log_time_series_metrics(metrics, step, wall_time)

    def log_artifact(self, path: str | Path, folder: str = "") -> None:
        """Log a file, or a folder with all in it."""
        self._logged().log_artifact(path, folder)

    def log_model(self, model: Any, name: str = "model") -> None:
        """Log a model as an artifact."""
        self._logged().log_model(model, name)

    def _logged(self) -> LoggedRun:
        run = _current()
        if run.name != self.name:
            raise UsageError(
                f"Run {self.name!r} is not under way, but {run.name!r}: end that one, and go on "
                f"with it by start_run({self.name!r}, resume=True)."
            )
        if self.experiment not in {None, run.experiment}:
            raise UsageError(
                f"Run {self.name!r} of experiment {self.experiment!r} is not under way, but that "
                f"of {run.experiment!r}: end that one first."
            )
        return run


class RunContext(NamedRun):
    """The run that was started; at the end of a `with` block it ends, as failed after an error."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        if _SESSION.run is not None and _SESSION.run.name == self.name:  # not another one by now
            _end(FINISHED if ends_well(error) else "FAILED")


def init(
    experiment: str | None = None,
    tracking_uri: str | None = None,
    tensorboard: bool = True,  # noqa: FBT001, FBT002 - as Vertex's `start_run` has it
) -> None:
    """Choose the experiment and where runs are tracked; a run that is under way stays as it is.

    Args:
        experiment: By default that of MLFLOW_EXPERIMENT_NAME, else "Default".
        tracking_uri: Of MLflow; by default that of MLFLOW_TRACKING_URI, else the SQLite database of
            the runs folder.
        tensorboard: Whether runs are written as event files, too, in their folders.
    """
    _SESSION.experiment, _SESSION.tracking_uri = experiment, tracking_uri
    _SESSION.tensorboard = tensorboard


def start_run(name: str, resume: bool = False) -> RunContext:  # noqa: FBT001, FBT002 - Vertex's signature
    """Start a run, or with `resume` go on with the one of that name, and log to it from now on.

    A run that autologging has started ends then. In a job all runs of its script are the job's.
    Raises UsageError: the name is taken in the experiment or is none, or another run that the
    script has started is under way.
    """
    if _SESSION.run is not None and _SESSION.is_chosen:
        raise UsageError(f"Run {_SESSION.run.name!r} is under way: call end_run() first.")
    if _SESSION.run is not None and not _SESSION.run.is_of_job:
        _end(FINISHED)
    _SESSION.run = _SESSION.run or _job_run()
    if _SESSION.run is not None:
        _SESSION.names_in_job.add((_SESSION.experiment_name, name))
        _report_second_run(_SESSION.run, name)
    else:
        _SESSION.run = _new_run(name, resume=resume)
        _SESSION.failure_watch = _SESSION.failure_watch or ScriptFailureWatch()
        atexit.register(_end_at_exit, os.getpid(), _SESSION.run)
    _SESSION.is_chosen = True
    if _SESSION.autologs:
        autolog()
    return RunContext(_SESSION.run.name)


def _report_second_run(job: LoggedRun, name: str) -> None:
    """Say that a job's script starts runs of several names, which are one: the job's."""
    first = _SESSION.first_name = _SESSION.first_name or name
    if name != first and not _SESSION.is_second_reported:
        _SESSION.is_second_reported = True
        print_status(
            f"run {name!r} and those after it are logged to the job's run {job.name!r}, as "
            f"{first!r} was: run the script without `headrace run` to have one each, or start a "
            "job for each (headrace sweep)"
        )


def is_under_way() -> bool:
    """Return whether a run is under way: one that was started, or the job's that was logged to."""
    return _SESSION.run is not None


def _end_at_exit(pid: int, run: LoggedRun) -> None:
    """End a run that its script has not ended, as failed if an error ended the script."""
    if os.getpid() != pid or _SESSION.run is not run:
        return
    watch = _SESSION.failure_watch
    if watch is not None and watch.is_undecided and run.end_by_exit_code():
        _SESSION.run = None
        return
    _end("FAILED" if watch is not None and watch.failed else FINISHED)


def _new_run(name: str, *, resume: bool) -> LoggedRun:
    if not is_plain_name(name):
        raise UsageError(f"Run {name!r}: a run's name is a plain folder name, such as 'base-2'.")
    folder, target = _place_of(name)
    if target is not None and not (resume and _is_of(target, name)):
        raise UsageError(
            f"There is a run {name!r} already, in experiment {target.experiment!r} ({folder}). "
            "Choose another name, or go on with it: start_run(name, resume=True)."
        )
    with _written(folder, name):
        target = target_to_go_on(folder / SPOOL)
    if target is None and folder.is_dir() and RunFolder(folder).attempts():
        raise UsageError(
            f"{folder} is a run of `headrace run` that is not tracked. Choose another name."
        )
    if target is None:
        target = RunTarget(
            key=uuid.uuid4().hex,
            tracking_uri=uri_of(folder.parent, _SESSION.tracking_uri),
            experiment=_SESSION.experiment_name,
            run_name=name,
            started_ms=now_ms(),
            run_type=_RUN_TYPE,
            resumes=resume,
            git_folder=str(Path.cwd()),
            tensorboard=_SESSION.tensorboard,
        )
        with _written(folder, name):
            target.write(folder / SPOOL)
    return LoggedRun(folder, name, sends=True, experiment=target.experiment)


def _place_of(name: str) -> tuple[Path, RunTarget | None]:
    """Return the folder of a run of the chosen experiment, and its target if it is there.

    A name is one run of each experiment. The first of them has the plain folder.
    """
    plain = runs_folder().absolute() / name
    own = plain.with_name(f"{_folder_name(_SESSION.experiment_name)}.{name}")
    targets = {folder: _target_of(name, folder) for folder in (own, plain)}
    for folder, target in targets.items():
        if target is not None and _is_of(target, name):
            return folder, target
    folder = plain if targets[plain] is None else own
    return folder, targets[folder]


def _is_of(target: RunTarget, name: str) -> bool:
    """Whether a run has this name in the chosen experiment."""
    return (target.run_name, target.experiment) == (name, _SESSION.experiment_name)


def _folder_name(experiment: str) -> str:
    """Return an experiment's name as the beginning of a folder's."""
    return re.sub(r"[^\w.-]+", "_", experiment).lstrip(".") or "_"


def _target_of(name: str, folder: Path) -> RunTarget | None:
    """Return where a run is tracked, if there is one; UsageError: its file is damaged."""
    try:
        return RunTarget.read(folder / SPOOL)
    except RunTargetError as error:
        raise UsageError(f"There is a run {name!r}, but {error} Or choose another name.") from error


@contextmanager
def _written(folder: Path, name: str) -> Iterator[None]:
    """Raise UsageError where a run's folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"Run {name!r} cannot be started: {folder} cannot be written: "
            f"{error.strerror or error}. Choose another runs folder: {env.RUNS_DIR.name}."
        ) from error


def autolog(disable: bool = False) -> None:  # noqa: FBT001, FBT002 - Vertex's signature
    """Have MLflow log what Lightning, scikit-learn, XGBoost and LightGBM train: params, metrics.

    They go to the run under way, and to later ones; a training before the first run starts one that
    is named after the time. Models are not saved. With `disable`, that ends.
    """
    from headrace.decide.experiments.autologging import (
        await_training,
        end_autologging,
        log_automatically,
    )

    _SESSION.autologs = not disable
    if disable:
        end_autologging()
        return
    _SESSION.run = _SESSION.run or _job_run()
    if _SESSION.run is None:
        uri = uri_of(runs_folder().absolute(), _SESSION.tracking_uri)
        await_training(uri, _run_of_training)
    else:
        log_automatically(_SESSION.run.folder / SPOOL)


def _run_of_training() -> None:
    """Start a run for a training that autologging has found."""
    start_run(time.strftime("autolog-%Y%m%d-%H%M%S"))
    _SESSION.is_chosen = False


def _current() -> LoggedRun:
    """Return the run under way: that of the script, else that of the job."""
    if _SESSION.run is None:
        _SESSION.run = _job_run()
    if _SESSION.failure_watch is not None:
        _SESSION.failure_watch.goes_on()
    return _SESSION.run or _no_run()


def _job_run() -> LoggedRun | None:
    """Return the run of the job that this process is part of, to be logged to; None outside."""
    _SESSION.job = job_run()
    return _SESSION.job


def _no_run() -> NoReturn:
    raise UsageError("No run is under way: call headrace.experiments.start_run(NAME) first.")


def log_params(params: Mapping[str, float | int | str]) -> None:
    """Log parameters, which cannot change; see `LoggedRun.log_params`."""
    _current().log_params(params)


def log_metrics(metrics: Mapping[str, float]) -> None:
    """Log numbers that describe the run; a later value replaces an earlier one."""
    _current().log_metrics(metrics)


def log_text_metrics(metrics: Mapping[str, str]) -> None:
    """Log texts that describe the run; see `LoggedRun.log_text_metrics`."""
    _current().log_text_metrics(metrics)


def log_time_series_metrics(
    metrics: Mapping[str, float], step: int | None = None, wall_time: Any = None
) -> None:
    """Log a point of time series; see `LoggedRun.log_time_series_metrics`."""
    run = _SESSION.run or _current()
    # What nearly all calls are, in this one function: between steps its code is in no cache, and
    # each function of Python that it called would take microseconds, each instruction a tenth.
    writer = run.writer
    if (
        writer is not None and writer.is_writing
        and metrics.__class__ is dict and step.__class__ is int and step in _STEPS
        and wall_time is None
        and ((names := tuple(metrics)) == run.last_names or names in run.checked_names)
        and countOf(map(type, values := tuple(metrics.values())), float) == len(names)
    ):  # fmt: skip
        writer.queue.append((names, values, time_ns(), step))
    else:
        run.log_time_series_metrics(metrics, step, wall_time)


def log_artifact(path: str | Path, folder: str = "") -> None:
    """Log a file, or a folder with all in it; raises UsageError where it is not there."""
    _current().log_artifact(path, folder)


def log_model(model: Any, name: str = "model") -> None:
    """Log a model as an artifact; see `LoggedRun.log_model`."""
    _current().log_model(model, name)


def end_run(status: str = FINISHED) -> None:
    """End the run under way as FINISHED, FAILED or KILLED; raises UsageError if there is none."""
    if _SESSION.run is None:
        _no_run()
    if status not in ENDS:
        raise UsageError(f"end_run: {status!r} is no end of a run: give one of {', '.join(ENDS)}.")
    _end(status)


def _end(status: str) -> None:
    run, _SESSION.run, _SESSION.is_chosen = _SESSION.run, None, False
    assert run is not None
    if _SESSION.autologs:
        from headrace.decide.experiments.autologging import end_autologging

        end_autologging()
    run.end(status)


def get_experiment_df(
    experiment: str | None = None,
    include_time_series: bool = True,  # noqa: FBT001, FBT002 - Vertex's signature
) -> pd.DataFrame:
    """Return the runs of an experiment, by default the one that `init` chose, a row each.

    In a job the job's run is one of them, whichever experiment that is of. Columns:
    experiment_name, run_name, run_type, state, param.*, metric.*, and with `include_time_series`
    the last values of time series, time_series_metric.*. Raises StoreUnavailableError.
    """
    from headrace.decide.experiments.data_frames import TrackedRun, runs_frame

    experiment = experiment or _SESSION.experiment_name
    job = _job_to_read(experiment)
    return runs_frame(
        uri_of(runs_folder(), _SESSION.tracking_uri),
        experiment,
        include_time_series=include_time_series,
        and_run=None if job is None else TrackedRun.of_job(job.folder),
    )


def _job_to_read(experiment: str, name: str | None = None) -> LoggedRun | None:
    """Return the job's run where it is meant by what is read; MLflow has all that was logged then.

    A job's script calls it by the names that it started runs under, and by the experiment that it
    chose, though the job was given others. None: another run is meant, or it is no job.
    """
    job = _SESSION.job
    if job is not None and job.folder != job_folder():
        job = None
    logged = _SESSION.run or job
    if logged is not None:
        logged.flush()
    if job is None:
        return None
    given = _SESSION.names_in_job
    if name is not None and name != job.name:
        return job if (experiment, name) in given else None
    experiments = {_SESSION.experiment_name, job.experiment, *(chosen for chosen, _ in given)}
    return job if experiment in experiments else None


class ExperimentRun(NamedRun):
    """A run of an experiment, to read, and to log to while it is under way.

    Args:
        run_name: Its name; of several of one name the latest. In a job a name that its script has
            given to `start_run` is the job's run.
        experiment: By default the one that `init` chose.

    Raises UsageError (there is no such run), StoreUnavailableError.
    """

    def __init__(self, run_name: str, experiment: str | None = None) -> None:
        from headrace.decide.experiments.data_frames import TrackedRun

        self.name, self.experiment = run_name, experiment or _SESSION.experiment_name
        job = _job_to_read(self.experiment, run_name)
        if job is not None:
            self.name, self.experiment = job.name, job.experiment
            self._run = TrackedRun.of_job(job.folder)
            return
        self._run = TrackedRun.named(
            uri_of(runs_folder(), _SESSION.tracking_uri), self.experiment, run_name
        )

    @property
    def state(self) -> str:
        """RUNNING, FINISHED, FAILED or KILLED."""
        return self._run.state

    def get_params(self) -> dict[str, str]:
        """Return its parameters."""
        return self._run.params

    def get_metrics(self) -> dict[str, float]:
        """Return the numbers that describe it; not its time series."""
        return self._run.metrics

    def get_time_series_data_frame(self) -> pd.DataFrame:
        """Return its time series: step, wall_time and a column for each, a row a step."""
        return self._run.time_series_frame()
