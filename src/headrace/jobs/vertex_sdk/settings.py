"""What `vertex.init` chooses: project, location, buckets, and the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.console import print_status
from headrace.decide.experiments import session


@dataclass
class Settings:
    """The defaults of jobs; project and location only set variables of scripts."""

    project: str | None = None
    location: str | None = None
    experiment: str | None = None
    staging_bucket: str | None = None  # of the cloud's own copies of code: not needed here


SETTINGS = Settings()
"""What the latest `init` has chosen."""


def init(
    *,
    project: str | None = None,
    location: str | None = None,
    experiment: object = None,
    experiment_description: str | None = None,
    experiment_tensorboard: object = None,
    staging_bucket: str | None = None,
    **ignored: Any,
) -> None:
    """Choose the experiment, and the variables of scripts about the cloud; as `aiplatform.init`.

    Args:
        project: CLOUD_ML_PROJECT_ID of scripts.
        location: CLOUD_ML_REGION of scripts.
        experiment: Its name, or an `Experiment`. None: as before.
        experiment_description: Ignored.
        experiment_tensorboard: False: no event files are written. Other values are ignored.
        staging_bucket: Ignored.
        ignored: Credentials, networks and so on, which nothing here needs.
    """
    SETTINGS.project = project or SETTINGS.project
    SETTINGS.location = location or SETTINGS.location
    SETTINGS.staging_bucket = staging_bucket or SETTINGS.staging_bucket
    if experiment is not None:
        SETTINGS.experiment = name_of(experiment)
        session.init(SETTINGS.experiment, tensorboard=experiment_tensorboard is not False)
    report_ignored("init", experiment_description=experiment_description, **ignored)


def name_of(resource: object) -> str:
    """Return the name of an experiment or a run, which is given by name or as an object."""
    return resource if isinstance(resource, str) else str(getattr(resource, "name", resource))


def report_ignored(where: str, **arguments: object) -> None:
    """Print which of the given arguments have no meaning here; those without a value were not."""
    empty = (None, False, 0, "")
    given = [
        name
        for name, value in arguments.items()
        if not (isinstance(value, bool | int | str | None) and value in empty)
        and not (isinstance(value, Mapping) and not value)
    ]
    if given:
        print_status(f"{where}: no meaning here, and ignored: {', '.join(given)}")
