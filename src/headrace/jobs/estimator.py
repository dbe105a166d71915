"""The `headrace.Estimator`: a training job described in Python, with SageMaker's names.

It starts `headrace run` as a child process, so whatever it does can also be typed. An Estimator
that is attached to a run takes the job from run.json; `update_profiler` changes how a running job
is recorded.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from pathlib import Path
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.jobs.job_request import JobRequest, argument_names, as_json, request_job, run_stem
from headrace.jobs.options import check_interval
from headrace.jobs.run_handle import RunHandle
from headrace.jobs.run_start import check_run, run_command, start_run
from headrace.jobs.sagemaker_sdk.config import FrameworkProfile, read_profile
from headrace.jobs.sagemaker_sdk.debugger import ProfilerRule, ignored_settings, read_rules
from headrace.jobs.sagemaker_sdk.inputs import Input, named_inputs
from headrace.records.redaction import HIDDEN, hide_secrets
from headrace.records.run_folder import Attempt, RunFolder

_FIT_KEYS = ("inputs", "notes", "experiment_config", "profiler_updates")
_DRY_RUN_S = 3600.0  # a listing of ten million objects takes a quarter of it
_IGNORED_FLAGS = ("--run-dir=", "--name=")
_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """The job of a run, from its run folder."""

    given: Mapping[str, Any]
    inputs: Mapping[str, Input] = field(default_factory=dict)  # its channels, by name
    experiment_config: Mapping[str, str] | None = None  # SageMaker's; None: there was none
    # The folder in which it was started, for relative paths; None: the current one
    folder: Path | None = None
    lacks: str | None = None  # why an Estimator cannot start it again; None: it can


def recorded_job(run: RunHandle) -> RecordedJob:
    """Return the job of a run.

    Raises UsageError (the run has no attempt).
    """
    attempt = run.attempt
    if attempt is None or not attempt.argv:
        raise UsageError(f"{run.path} records no attempt: there is nothing to attach to.")
    asked = attempt.asked
    script = {"entry_point": attempt.argv[0]}
    if "entry_point" not in asked:
        return RecordedJob(given=script, lacks="it was started from a command line")
    given = {name: value for name, value in asked.items() if name not in _FIT_KEYS}
    try:
        inputs = named_inputs(asked.get("inputs"), "")
        request = request_job(given, inputs, "")
        words = {*request.words()}
    except UsageError as error:
        return RecordedJob(given=script, lacks=f"what it was asked for cannot be read: {error}")
    return RecordedJob(
        given=given,
        inputs=inputs,
        experiment_config=asked.get("experiment_config"),
        folder=Path(attempt.folder) if attempt.folder else None,
        lacks=_restart_obstacle(attempt, words),
    )


def _restart_obstacle(attempt: Attempt, words: set[str]) -> str | None:
    if attempt.hides_secrets or HIDDEN in json.dumps(attempt.asked):
        return "it was given a secret, which was not written down"
    more = [each for each in attempt.command[2:]
            if each not in words and not each.startswith(_IGNORED_FLAGS)]  # fmt: skip
    return f"its command line had more to say: {shlex.join(more)}" if more else None


class ClassOrInstanceMethod(Generic[_Result, _Params]):
    """A method that can be called on a class or an instance, and gets the one it is called on."""

    def __init__(self, function: Callable[Concatenate[Any, _Params], _Result]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: object | None, owner: type) -> Callable[_Params, _Result]:
        return MethodType(self._function, owner if instance is None else instance)


_DEEP_S = 20.0
_UPDATE_PREFIX = "update_profiler: "


def _update_recording(run: RunHandle, given: Mapping[str, Any]) -> None:
    """Change how a run is recorded, and note that in its folder; `given` is what is to change."""
    millis, deep_s = given["system_monitor_interval_millis"], given["deep_s"]
    ends_deep = given["disable_framework_metrics"]
    interval_s = None if millis is None else check_interval(f"{millis}ms")
    rules = [] if given["rules"] is None else read_rules(given["rules"], _UPDATE_PREFIX)
    profile = read_profile(given["framework_profile_params"])
    wanted = {**given, "framework_profile_params": profile}.values()
    if not any(each is not None and each is not False for each in wanted):
        raise UsageError(
            f"{_UPDATE_PREFIX}say what is to change, such as system_monitor_interval_millis=500."
        )
    if ends_deep and (profile is not None or deep_s is not None):
        other = "deep_s" if profile is None else "framework_profile_params"
        raise UsageError(
            f"{_UPDATE_PREFIX}disable_framework_metrics and {other}: give one of them."
        )
    switch = run.switch()
    switch.on = True
    if interval_s is not None:
        switch.interval_s = interval_s
    if ends_deep:
        switch.end_deep()
    elif deep_s is not None or profile is not None:
        duration = profile.duration if isinstance(profile, FrameworkProfile) else None
        switch.go_deep(deep_s or duration or _DEEP_S)
    update = {name: value for name, value in given.items() if value}
    changes_json = json.loads(json.dumps({"rules": rules, "update": update}, default=as_json))
    _record_update(run, hide_secrets(changes_json))
    notes = ignored_settings(rules=rules, profile=profile, s3_output_path=given["s3_output_path"])
    for note in notes:
        print_status(f"{_UPDATE_PREFIX}{note}")


def _record_update(run: RunHandle, changes_json: dict[str, list[object]]) -> None:
    attempt = run.attempt
    asked = {} if attempt is None else attempt.asked
    changes = {"profiler_updates": [*asked.get("profiler_updates", []), changes_json["update"]]}
    if changes_json["rules"]:
        changes["rules"] = [*asked.get("rules", []), *changes_json["rules"]]
    RunFolder(run.path).note_job_request(run.number, changes)


_ESTIMATOR_PREFIX = "Estimator: "


class Estimator:
    """A training job that can be started, also several times.

    docs/estimator.md lists all arguments; None means not given.

    Args:
        entry_point: The script, relative to `source_dir` where that is given.
        arguments: Further arguments: `source_dir`, `hyperparameters`, `instance_groups` or
            `instance_count` and `instance_type`, `distribution`, ...

    Attributes:
        latest_run: The run that was started or attached to last; None: there is none.

    Raises:
        UsageError: An unknown argument (the message names the nearest one), or an invalid value.

    Example:
        Estimator("train.py", hyperparameters={"epochs": 3}).fit({"train": "s3://bucket/train"})
    """

    def __init__(self, entry_point: str, **arguments: Any) -> None:
        self._given: dict[str, Any] = {"entry_point": entry_point, **arguments}
        request_job(self._given, {}, _ESTIMATOR_PREFIX)  # raises where an argument is wrong
        self.latest_run: RunHandle | None = None
        self._recorded: RecordedJob | None = None

    @ClassOrInstanceMethod
    def attach(self: Estimator | type[Estimator], run: str | Path) -> Estimator:
        """Attach to a run that another process started.

        On the class it returns an Estimator of that run's job, as far as its folder records it:
        `fit()` starts the same job again. On an Estimator it changes only `latest_run`.

        Args:
            run: The run folder, or its name in the runs folder.

        Raises:
            UsageError: There is no such run.
        """
        found = RunHandle.of(run)
        job = recorded_job(found)
        if isinstance(self, Estimator):
            estimator = self
        else:
            estimator = self(**job.given)
            estimator._recorded = job  # noqa: SLF001 - its own
        estimator.latest_run = found
        return estimator

    def fit(
        self,
        inputs: Input | Mapping[str, Input] | None = None,
        wait: bool = True,  # noqa: FBT001, FBT002 - SageMaker's
        logs: bool = True,  # noqa: FBT001, FBT002
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
    ) -> None:
        """Start the job.

        Args:
            inputs: The channels: URLs or paths, TrainingInput, FileSystemInput, by name; a single
                one is the channel `training`. None: those of the run attached to, if any.
            wait: Wait for the end of the job, which then ends with this process. Otherwise it runs
                on by itself.
            logs: While waiting, print the job's output.
            job_name: The run's name; an existing run continues with its next attempt.
            experiment_config: SageMaker's; recorded, and passed on by Vertex AI's contract.

        Raises:
            UsageError: An invalid value; nothing has run.
            LaunchError: The job failed; the message ends with its last output.
        """
        request = self._request(inputs, experiment_config)
        for note in request.notes:
            print_status(note)
        self.latest_run = None
        self.latest_run = run = start_run(
            request, job_name or request.job_name, stem=run_stem(self._given), tied=wait,
            folder=self._folder(),
        )  # fmt: skip
        if not wait:
            return
        try:
            _ = run.logs() if logs else run.wait()
        except KeyboardInterrupt:
            print_status(f"{run.name} is asked to stop")
            run.stop()
            raise
        check_run(run)

    def dry_run(self, inputs: Input | Mapping[str, Input] | None = None) -> str:
        """Return what `fit` would start: hosts, ranks, variables, arguments, data to move.

        Raises:
            UsageError: An invalid value.
        """
        request = self._request(inputs, None)
        command, variables = run_command(request, "--dry-run")
        try:
            result = subprocess.run(
                command, env=env.child_environment(variables), cwd=self._folder(),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=_DRY_RUN_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LaunchError(
                f"The dry run has not ended within {_DRY_RUN_S:.0f} s, in which it counts the "
                "objects of channels. `headrace run --dry-run` on a command line has no such limit."
            ) from None
        if result.returncode != 0:
            message = result.stderr.strip().removeprefix("headrace: ")
            is_usage_error = result.returncode == UsageError.exit_code
            raise UsageError(message) if is_usage_error else LaunchError(message)
        return result.stdout

    def logs(self) -> None:
        """Print the latest run's output from its beginning to its end."""
        self._run().logs()

    def wait(self) -> None:
        """Wait for the end of the latest run; raises as `fit` does."""
        run = self._run()
        run.wait()
        check_run(run)

    def stop(self, grace_s: float = 120.0) -> None:
        """Send SIGTERM to the latest run; kill it after the grace period, in seconds."""
        self._run().stop(grace_s)

    def update_profiler(
        self,
        rules: Sequence[ProfilerRule] | None = None,
        system_monitor_interval_millis: int | None = None,
        s3_output_path: str | None = None,
        framework_profile_params: object | None = None,
        disable_framework_metrics: bool = False,  # noqa: FBT001, FBT002 - SageMaker's
        *,
        deep_s: float | None = None,
    ) -> None:
        """Change how the latest run is recorded while it runs; run.json records the change.

        Args:
            rules: Further SageMaker Debugger rules, which are checked when the run has ended.
            system_monitor_interval_millis: Milliseconds between samples of the system.
            s3_output_path: SageMaker's; the records are in the run folder.
            framework_profile_params: FrameworkProfile: record in depth for its duration or 20 s.
            disable_framework_metrics: End the recording in depth; steps are recorded as usual.
            deep_s: Record in depth for this many seconds, and trace a few steps.

        Raises:
            UsageError: Nothing is to change, or a value is invalid.
            RecordsError: The run is not running, or is not recorded.
        """
        given = {
            "rules": rules,
            "system_monitor_interval_millis": system_monitor_interval_millis,
            "s3_output_path": s3_output_path,
            "framework_profile_params": framework_profile_params,
            "disable_framework_metrics": disable_framework_metrics,
            "deep_s": deep_s,
        }
        _update_recording(self._run(), given)

    def disable_profiling(self) -> None:
        """Record nothing of the latest run from now on; raises RecordsError."""
        self._run().switch().on = False

    def enable_default_profiling(self) -> None:
        """Record the latest run from now on; raises RecordsError."""
        self._run().switch().on = True

    def _run(self) -> RunHandle:
        if self.latest_run is None:
            raise UsageError("No run was started yet: call fit(), or Estimator.attach(run).")
        return self.latest_run

    def _folder(self) -> Path | None:
        """Return where the job starts; None: here."""
        folder = None if self._recorded is None else self._recorded.folder
        if folder is not None and not folder.is_dir():
            raise UsageError(
                f"the job was started in {folder}, which is gone, and its paths begin there. Bring "
                "it back, or describe the job by an Estimator of its own."
            )
        return folder

    def _request(self, inputs: object, experiment_config: Mapping[str, str] | None) -> JobRequest:
        recorded = self._recorded
        if recorded is not None:
            if recorded.lacks is not None:
                raise UsageError(
                    f"this Estimator was attached to a run, and cannot start its job again: "
                    f"{recorded.lacks}. Describe the job by an Estimator of its own, or see "
                    "headrace resume."
                )
            inputs = recorded.inputs if inputs is None else inputs
            experiment_config = experiment_config or recorded.experiment_config
        return request_job(
            self._given, named_inputs(inputs, _ESTIMATOR_PREFIX), _ESTIMATOR_PREFIX,
            experiment_config=experiment_config,
        )  # fmt: skip


def _signature() -> Signature:
    """Return the signature of `Estimator`, which editors and help() show, with all arguments."""
    names = [name for name in argument_names() if name != "entry_point"]
    further = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in names]
    return Signature([Parameter("entry_point", Parameter.POSITIONAL_OR_KEYWORD), *further])


Estimator.__signature__ = _signature()  # type: ignore[attr-defined]
PyTorch = Estimator
"""SageMaker's name for an Estimator of a PyTorch script."""
