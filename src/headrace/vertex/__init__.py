"""The names of Vertex AI's SDK for jobs and experiments, importable in the SDK's place.

    from headrace import vertex as aiplatform  # was: from google.cloud import aiplatform

The package holds no logic of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_importer

if TYPE_CHECKING:
    from headrace.decide.experiments.session import autolog as autolog
    from headrace.decide.experiments.session import get_experiment_df as get_experiment_df
    from headrace.decide.experiments.session import log_artifact as log_artifact
    from headrace.decide.experiments.session import log_params as log_params
    from headrace.decide.experiments.session import (
        log_time_series_metrics as log_time_series_metrics,
    )
    from headrace.jobs.vertex_sdk.custom_job import CustomJob as CustomJob
    from headrace.jobs.vertex_sdk.settings import init as init
    from headrace.jobs.vertex_sdk.tracking import Experiment as Experiment
    from headrace.jobs.vertex_sdk.tracking import ExperimentRun as ExperimentRun
    from headrace.jobs.vertex_sdk.tracking import Tensorboard as Tensorboard
    from headrace.jobs.vertex_sdk.tracking import end_run as end_run
    from headrace.jobs.vertex_sdk.tracking import log_metrics as log_metrics
    from headrace.jobs.vertex_sdk.tracking import log_model as log_model
    from headrace.jobs.vertex_sdk.tracking import start_run as start_run
    from headrace.jobs.vertex_sdk.training_jobs import (
        CustomPythonPackageTrainingJob as CustomPythonPackageTrainingJob,
    )
    from headrace.jobs.vertex_sdk.training_jobs import CustomTrainingJob as CustomTrainingJob
    from headrace.vertex import gapic as gapic

_NAMES = {
    "headrace.decide.experiments.session": "autolog get_experiment_df "
    "log_artifact log_params log_time_series_metrics",
    "headrace.jobs.vertex_sdk.custom_job": "CustomJob",
    "headrace.jobs.vertex_sdk.settings": "init",
    "headrace.jobs.vertex_sdk.tracking": "Experiment ExperimentRun Tensorboard end_run "
    "log_metrics log_model start_run",
    "headrace.jobs.vertex_sdk.training_jobs": "CustomPythonPackageTrainingJob CustomTrainingJob",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_HOMES["gapic"] = "headrace.vertex.gapic"

__all__ = [*_HOMES]  # noqa: PLE0604 - the names are strings, and a test lists them


__getattr__ = lazy_importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
