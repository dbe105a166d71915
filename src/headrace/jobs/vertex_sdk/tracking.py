"""Vertex AI's functions of experiments, where their signatures differ from ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.decide.experiments import session
from headrace.decide.experiments.session import RunContext
from headrace.jobs.vertex_sdk.job_states import ExecutionState
from headrace.jobs.vertex_sdk.settings import SETTINGS, name_of, report_ignored

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Experiment", "ExperimentRun", "Tensorboard", "end_run", "log_metrics", "log_model",
    "start_run",
]  # fmt: skip

_STATUS = {
    ExecutionState.COMPLETE: "FINISHED",
    ExecutionState.FAILED: "FAILED",
    ExecutionState.CANCELLED: "KILLED",
}


def start_run(run: str, *, tensorboard: object = None, resume: bool = False) -> VertexRunContext:
    """Start a run, or with `resume` go on with the one of that name; see experiments.start_run.

    One that is under way ends, as by the SDK.
    """
    report_ignored("start_run", tensorboard=tensorboard)
    if session.is_under_way():
        session.end_run()
    return VertexRunContext(session.start_run(run, resume).name)


def end_run(state: ExecutionState = ExecutionState.COMPLETE) -> None:
    """End the run as COMPLETE, FAILED or CANCELLED; raises UsageError for other states."""
    if state not in _STATUS:
        raise UsageError(
            f"end_run: {state} is no end: give {', '.join(each.name for each in _STATUS)}."
        )
    session.end_run(_STATUS[state])


def log_metrics(metrics: Mapping[str, float | str]) -> None:
    """Log numbers and texts that describe the run; later ones replace earlier ones."""
    numbers, texts = _numbers_and_texts(metrics)
    if numbers or not texts:
        session.log_metrics(numbers)
    if texts:
        session.log_text_metrics(texts)


def _numbers_and_texts(metrics: Any) -> tuple[Any, dict[str, str]]:
    """Return what is logged as numbers, which is checked then, and what as texts."""
    if not isinstance(metrics, Mapping):
        return metrics, {}
    texts = {name: each for name, each in metrics.items() if isinstance(each, str)}
    return {n: each for n, each in metrics.items() if not isinstance(each, str)}, texts


def log_model(model: Any, artifact_id: str | None = None, **ignored: Any) -> None:
    """Log a model as the artifact models/ARTIFACT_ID; see experiments.log_model."""
    report_ignored("log_model", **ignored)
    session.log_model(model, artifact_id or "model")


class _VertexRun(session.NamedRun):
    """What can be called of a run, as by the SDK."""

    def log_metrics(self, metrics: Mapping[str, float | str]) -> None:
        """Log numbers and texts that describe the run; later ones replace earlier ones."""
        self._logged()
        log_metrics(metrics)

    def log_model(self, model: Any, artifact_id: str | None = None, **ignored: Any) -> None:  # type: ignore[override]
        """Log a model as the artifact models/ARTIFACT_ID."""
        report_ignored("log_model", **ignored)
        super().log_model(model, artifact_id or "model")

    def end_run(self, *, state: ExecutionState = ExecutionState.COMPLETE) -> None:
        """End the run; raises UsageError where another one is under way."""
        self._logged()
        end_run(state)


class VertexRunContext(_VertexRun, RunContext):
    """The run that was started."""


class VertexExperimentRun(_VertexRun, session.ExperimentRun):
    """A run of an experiment, which is given by name or as an object; see experiments."""

    def __init__(self, run_name: str, experiment: object = None, **_: Any) -> None:
        super().__init__(run_name, None if experiment is None else name_of(experiment))

    def get_metrics(self) -> dict[str, float | str]:  # type: ignore[override]
        """Return the numbers and texts that describe it; not its time series."""
        return {**self._run.text_metrics, **super().get_metrics()}


ExperimentRun = VertexExperimentRun


class Tensorboard:
    """A managed TensorBoard by name, which stands for the event files in the runs' own folders.

    Nothing is created: each run has its event files there, unless `init` was given False.
    """

    def __init__(
        self, tensorboard_name: str, project: str | None = None, location: str | None = None,
        **_: Any,
    ) -> None:  # fmt: skip
        place, slash, name = tensorboard_name.rpartition("/tensorboards/")
        self.name = self.display_name = name
        self._place = place if slash else ""
        self._project, self._location = project, location

    @classmethod
    def create(
        cls, display_name: str | None = None, *, project: str | None = None,
        location: str | None = None, **ignored: Any,
    ) -> Self:  # fmt: skip
        """Return one of that name."""
        report_ignored("Tensorboard.create", **ignored)
        return cls(display_name or "tensorboard", project, location)

    @property
    def resource_name(self) -> str:
        """projects/PROJECT/locations/LOCATION/tensorboards/NAME."""
        project = self._project or SETTINGS.project or "-"
        location = self._location or SETTINGS.location or "-"
        place = self._place or f"projects/{project}/locations/{location}"
        return f"{place}/tensorboards/{self.name}"

    @property
    def gca_resource(self) -> SimpleNamespace:
        """What the service would say of it: its `name` and `display_name`."""
        return SimpleNamespace(name=self.resource_name, display_name=self.display_name)

    def delete(self) -> None:
        """Do nothing: the event files are deleted with their run's folder."""


class Experiment:
    """An experiment, by name."""

    def __init__(self, experiment_name: str, **_: Any) -> None:
        self.name = experiment_name

    @classmethod
    def get_or_create(cls, experiment_name: str, **_: Any) -> Self:
        """Return an experiment; MLflow creates it with its first run."""
        return cls(experiment_name)

    create = get_or_create

    def delete(self, **_: Any) -> None:
        """Delete nothing, and say so: its runs may be others' as well."""
        print_status(f"delete: {self.name} stays, with its runs: see `mlflow experiments delete`")

    def get_data_frame(self, include_time_series: bool = True) -> pd.DataFrame:  # noqa: FBT001, FBT002 - the SDK's
        """Return its runs, a row each; see experiments.get_experiment_df."""
        return session.get_experiment_df(self.name, include_time_series)
