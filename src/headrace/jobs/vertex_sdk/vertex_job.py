"""A job with the methods that jobs of Vertex AI's SDK share: its state, waiting, cancelling."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from inspect import signature
from typing import Any, Generic, Self

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError, did_you_mean
from headrace.core.files import write_text_atomically
from headrace.jobs.job_request import request_job
from headrace.jobs.options import is_list
from headrace.jobs.run_handle import RunHandle
from headrace.jobs.run_start import check_run, start_run
from headrace.jobs.vertex_sdk.job_states import VertexState, vertex_state
from headrace.jobs.vertex_sdk.python_package import is_installed
from headrace.jobs.vertex_sdk.settings import SETTINGS
from headrace.jobs.vertex_sdk.unused_files import remove_unused
from headrace.jobs.vertex_sdk.worker_pools import Code, Machine
from headrace.records.redaction import shown_value
from headrace.records.run_folder import runs_folder

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_REQUIREMENTS = ".requirements"
"""Of files with what jobs ask for, in the runs folder."""


class JobFailedError(LaunchError, RuntimeError):
    """A job has failed; scripts for Vertex AI expect a RuntimeError."""


class VertexJob(Generic[VertexState]):
    """A job that is started as `headrace run` under the contract of Vertex AI.

    Attributes:
        display_name: Of the job; runs are named after it.
        run_handle: The run; None before it has started.
    """

    _states: type[VertexState]
    _resource = ""  # the kind in a resource's name

    def __init__(self, display_name: str) -> None:
        if not isinstance(display_name, str) or not display_name.strip():
            raise UsageError(f"{self._where()}display_name: {display_name!r} is not a text.")
        self.display_name = display_name
        self.run_handle: RunHandle | None = None
        self._requirements: Sequence[str] | None = None  # None: what a job file has by default

    @classmethod
    def get(cls, resource_name: str) -> Self:
        """Return the job of a run, by its resource name, its name, or its folder.

        Raises UsageError: there is no such run.
        """
        _, _, name = resource_name.partition(f"/{cls._resource}/")
        run = RunHandle.of(name or resource_name)
        job = cls.__new__(cls)
        VertexJob.__init__(job, run.name)
        job.run_handle = run
        return job

    @classmethod
    def _where(cls) -> str:
        return f"{cls.__name__}: "

    @property
    def state(self) -> VertexState:
        """The state in Vertex AI's words, such as JOB_STATE_RUNNING."""
        return vertex_state(self._states, "" if self.run_handle is None else self.run_handle.state)

    @property
    def has_failed(self) -> bool:
        """Whether the job has failed."""
        return self.run_handle is not None and self.run_handle.state == "Failed"

    @property
    def error(self) -> str | None:
        """Why the job has failed; None: it has not."""
        if not self.has_failed:
            return None
        try:
            self._run().check()
        except (UsageError, LaunchError) as error:
            return str(error)
        return None

    @property
    def name(self) -> str:
        """The run's name."""
        return self._run().name

    @property
    def resource_name(self) -> str:
        """The job's name in the cloud's form, which ends with the run's name."""
        project, location = SETTINGS.project or "-", SETTINGS.location or "-"
        return f"projects/{project}/locations/{location}/{self._resource}/{self.name}"

    @property
    def start_time(self) -> datetime | None:
        """When the job has started; None: not yet."""
        return self._time("started_s")

    @property
    def end_time(self) -> datetime | None:
        """When the job has ended; None: not yet."""
        return self._time("ended_s")

    def wait(self) -> None:
        """Wait for the job's end; raises JobFailedError (it failed) or UsageError (refused)."""
        run = self._run()
        run.wait()
        self._check(run)

    def wait_for_resource_creation(self) -> None:
        """Do nothing: a job that was started is there."""
        self._run()

    def cancel(self) -> None:
        """Ask the job to stop, and wait until it has."""
        self._run().stop()

    def delete(self, **_: Any) -> None:
        """Delete nothing, and say so: in a run's folder are also the outputs, which stay there."""
        run = self._run()
        print_status(f"delete: {run.name} stays, with its outputs: {run.path} is its folder")

    def _time(self, name: str) -> datetime | None:
        attempt = self._run().attempt
        seconds = None if attempt is None else getattr(attempt, name)
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    def _run(self) -> RunHandle:
        if self.run_handle is None:
            raise UsageError(f"{self._where()}{self.display_name} has not started: call run().")
        return self.run_handle

    def _start(
        self, asked: Mapping[str, Any], *, sync: bool, experiment: str | None = None,
        run_name: str | None = None,
    ) -> None:  # fmt: skip
        """Start the job; with `sync`, print its output and wait for its end.

        Args:
            asked: Arguments of the job request; those that are None were not given.
            sync: Whether the job ends with this process.
            experiment: The run's; None: what `init` chose.
            run_name: Its name, which may be that of a run to go on with; None: a new one.

        Raises:
            UsageError: An invalid value; nothing has run.
            JobFailedError: The job failed.
        """
        if self.run_handle is not None:
            raise UsageError(f"{self._where()}{self.display_name} has run: make another job.")
        experiment = experiment or SETTINGS.experiment
        given = {**asked, **_usual_arguments()}
        if self._requirements is not None:
            given["requirements"] = _requirements_file(self._requirements)
        request = request_job(
            given, {}, self._where(),
            experiment_config=_experiment_config(experiment, run_name),
        )  # fmt: skip
        request = replace(request, variables={**request.variables, **_cloud_variables()})
        for note in request.notes:
            print_status(note)
        stem = _NOT_IN_NAMES.sub("-", self.display_name).strip("-.") or "job"
        run = start_run(
            request, run_name, stem=stem, tied=sync,
            options={"experiment": [experiment]} if experiment else None,
        )  # fmt: skip
        self.run_handle = run
        if not sync:
            return
        try:
            run.logs()
        except KeyboardInterrupt:
            print_status(f"{run.name} is asked to stop")
            run.stop()
            raise
        self._check(run)

    @classmethod
    def _check(cls, run: RunHandle) -> None:
        try:
            check_run(run)
        except LaunchError as error:
            raise JobFailedError(str(error)) from None


def _usual_arguments() -> dict[str, Any]:
    """Return the arguments of all jobs: the contract, and the cluster if one is named."""
    engine = {"engine": "ray"} if env.RAY_ADDRESS.get() else {}
    return {"contract": "vertex", **engine}


def _cloud_variables() -> dict[str, str]:
    """Return the variables from which the contract takes project and location."""
    given = {env.GOOGLE_CLOUD_PROJECT: SETTINGS.project, env.GOOGLE_CLOUD_REGION: SETTINGS.location}
    return {variable.name: value for variable, value in given.items() if value}


def _experiment_config(experiment: str | None, run_name: str | None) -> dict[str, str]:
    """Return SageMaker's form of an experiment, which becomes the variables of Vertex AI's."""
    if experiment is None:
        return {}
    return {"ExperimentName": experiment} | ({"RunName": run_name} if run_name else {})


def check_known(
    arguments: Mapping[str, Any], known: Sequence[str], function: Callable[..., Any], where: str
) -> Mapping[str, Any]:
    """Return arguments of a function that the SDK has, too, besides those it names.

    Raises UsageError for others, with the nearest name.
    """
    for name in arguments:
        if name not in known:
            meant = did_you_mean(name, [*signature(function).parameters, *known])
            raise UsageError(f"{where}there is no argument {name}.{meant}")
    return arguments


def script_request(code: Code, machine: Machine, replicas: int) -> dict[str, Any]:
    """Return the arguments of the job request of one kind of machines; raises UsageError."""
    return {**code.arguments(), "instance_groups": [machine.group("worker", replicas)]}


def check_requirements(requirements: Sequence[str] | None, where: str) -> Sequence[str] | None:
    """Return what pip is to install first; raises UsageError where that is no list of texts."""
    if requirements is None:
        return None
    if not is_list(requirements) or not all(isinstance(each, str) for each in requirements):
        raise UsageError(
            f"{where}requirements: {shown_value(requirements)} is not a list of texts."
        )
    return requirements


def check_variables(variables: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """Return variables; raises UsageError where they are none."""
    if variables is not None and not isinstance(variables, Mapping):
        raise UsageError(f"{where}environment_variables: {shown_value(variables)} is no dict.")
    return dict(variables or {})


def _requirements_file(requirements: Sequence[str]) -> str:
    """Return the file of what pip installs first, or `none` where all of it is installed."""
    missing = [need for need in requirements if not is_installed(need)]
    if not missing:
        return "none"
    text = "".join(f"{need}\n" for need in missing)
    folder = runs_folder().absolute() / _REQUIREMENTS
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove_unused(folder)
    file = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.txt"
    write_text_atomically(file, text)
    file.chmod(0o600)  # a URL may hold a token
    return str(file)
