"""Vertex AI's functions of experiments, where their signatures differ from ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from headrace.decide.experiments import session
from headrace.decide.experiments.session import RunContext
from headrace.jobs.vertex_sdk.settings import report_ignored

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Experiment", "log_model", "start_run"]


def start_run(run: str, *, tensorboard: object = None, resume: bool = False) -> RunContext:
    """Start a run, or with `resume` go on with the one of that name; see experiments.start_run."""
    report_ignored("start_run", tensorboard=tensorboard)
    return session.start_run(run, resume)


def log_model(model: Any, artifact_id: str | None = None, **ignored: Any) -> None:
    """Log a model as the artifact models/ARTIFACT_ID; see experiments.log_model."""
    report_ignored("log_model", **ignored)
    session.log_model(model, artifact_id or "model")


class Experiment:
    """An experiment, by name."""

    def __init__(self, experiment_name: str, **_: Any) -> None:
        self.name = experiment_name

    @classmethod
    def get_or_create(cls, experiment_name: str, **_: Any) -> Self:
        """Return an experiment; MLflow creates it with its first run."""
        return cls(experiment_name)

    create = get_or_create

    def get_data_frame(self, include_time_series: bool = True) -> pd.DataFrame:  # noqa: FBT001, FBT002 - the SDK's
        """Return its runs, a row each; see experiments.get_experiment_df."""
        return session.get_experiment_df(self.name, include_time_series)
