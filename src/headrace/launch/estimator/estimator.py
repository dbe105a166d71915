"""`headrace.Estimator`: a training job described in Python, with SageMaker's names.

It starts `headrace run` in a process of its own, so what it does can be typed as well.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.core.tied import tied_command
from headrace.launch.estimator.attaching import OfClassAndInstance, RecordedJob, recorded_job
from headrace.launch.estimator.debugger import ProfilerRule
from headrace.launch.estimator.job_arguments import JobArguments
from headrace.launch.estimator.job_description import JobDescription, describe, run_stem
from headrace.launch.estimator.lowering import Lowered, lower
from headrace.launch.estimator.profiler_update import ProfilerUpdate
from headrace.launch.estimator.started_run import StartedRun
from headrace.launch.estimator.training_inputs import Input, named_inputs
from headrace.launch.told import tell
from headrace.records.run_folder import LAUNCHER_LOG, RunFolder, open_run_folder

_WHERE = "Estimator: "


class Estimator:
    """A training job that can be started, also several times.

    docs/estimator.md tells all arguments; None stands for one that is not given.

    Args:
        entry_point: The script, from `source_dir` on where that is given.
        arguments: What else there is to say: `source_dir`, `hyperparameters`, `instance_groups` or
            `instance_count` and `instance_type`, `distribution`, ...

    Attributes:
        latest_run: The run that was started last, or attached to; None: there was none.

    Raises:
        UsageError: There is no such argument (the nearest is named), or its value cannot be.

    Example:
        Estimator("train.py", hyperparameters={"epochs": 3}).fit({"train": "s3://bucket/train"})
    """

    def __init__(self, entry_point: str, **arguments: Unpack[JobArguments]) -> None:
        self._given: dict[str, Any] = {"entry_point": entry_point, **arguments}
        self._job = describe(self._given, _WHERE)
        self.latest_run: StartedRun | None = None
        self._recorded: RecordedJob | None = None

    @OfClassAndInstance
    def attach(self: Estimator | type[Estimator], run: str | Path) -> Estimator:
        """Take up a run that another process started.

        On the class it returns an Estimator of that run's job, as far as its folder tells it: its
        `fit()` starts the same job anew. On an Estimator it changes `latest_run` alone.

        Args:
            run: The run's folder, or its name below the runs folder.

        Raises:
            UsageError: There is no such run.
        """
        found = StartedRun.of(run)
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
            inputs: The channels: URLs or paths, TrainingInput, FileSystemInput, by their names;
                one alone is the channel `training`. None: those of the run attached to, if any.
            wait: Wait for its end. The job then ends with this process, too; otherwise it goes on.
            logs: While waiting, show what it says.
            job_name: The run's name; one that there is goes on with its next attempt.
            experiment_config: SageMaker's; recorded, and told to a script by Vertex AI's contract.

        Raises:
            UsageError: A value that cannot be; nothing has run.
            LaunchError: The job failed; the message ends with its last words.
        """
        lowered = self._lowered(inputs, experiment_config)
        for note in lowered.notes:
            tell(f"headrace: {note}\n")
        self.latest_run = None
        self.latest_run = run = _start(
            lowered, job_name or self._job.job_name, run_stem(self._given), tied=wait,
            folder=self._folder(),
        )  # fmt: skip
        if not wait:
            return
        try:
            _ = run.logs() if logs else run.wait()
        except KeyboardInterrupt:
            tell(f"headrace: {run.name} is asked to stop\n")
            run.stop()
            raise
        _check(run)

    def dry_run(self, inputs: Input | Mapping[str, Input] | None = None) -> str:
        """Return what `fit` would start: hosts, ranks, variables, arguments, data to move.

        Raises:
            UsageError: A value that cannot be.
        """
        lowered = self._lowered(inputs, None)
        ended = subprocess.run(
            [*_HEADRACE, *lowered.flags, "--dry-run", lowered.script],
            env=env.child_environment(lowered.variables),
            cwd=self._folder(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            said = ended.stderr.strip().removeprefix("headrace: ")
            wrong = ended.returncode == UsageError.exit_code
            raise UsageError(said) if wrong else LaunchError(said)
        return ended.stdout

    def logs(self) -> None:
        """Show what the latest run says, from its beginning until its end."""
        self._run().logs()

    def wait(self) -> None:
        """Wait for the end of the latest run; raises as `fit` does."""
        run = self._run()
        run.wait()
        _check(run)

    def stop(self, grace_s: float = 120.0) -> None:
        """Ask the latest run to stop; after the grace, in seconds, kill it. Nothing is left."""
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
        """Change how the latest run is recorded while it runs; run.json has what was asked.

        Args:
            rules: Rules of SageMaker Debugger's that are checked, too, when it has ended.
            system_monitor_interval_millis: Milliseconds between samples of the system.
            s3_output_path: SageMaker's; what is recorded lies in the run's folder.
            framework_profile_params: FrameworkProfile: look closer, for its duration or 20 seconds.
            disable_framework_metrics: Look closer no more; steps are recorded as usual.
            deep_s: Look closer for so many seconds, and trace a few steps.

        Raises:
            UsageError: Nothing is to change, or a value cannot be.
            RecordsError: It does not run, or is not recorded.
        """
        ProfilerUpdate(
            rules=rules,
            system_monitor_interval_millis=system_monitor_interval_millis,
            s3_output_path=s3_output_path,
            framework_profile_params=framework_profile_params,
            disable_framework_metrics=disable_framework_metrics,
            deep_s=deep_s,
        ).apply(self._run())

    def disable_profiling(self) -> None:
        """Record nothing of the latest run from now on; raises RecordsError."""
        self._run().switch().on = False

    def enable_default_profiling(self) -> None:
        """Record the latest run from now on; raises RecordsError."""
        self._run().switch().on = True

    def _run(self) -> StartedRun:
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

    def _lowered(self, inputs: object, experiment_config: Mapping[str, str] | None) -> Lowered:
        job: JobDescription = self._job
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
        if experiment_config is not None:
            job = replace(job, asked={**job.asked, "experiment_config": dict(experiment_config)})
        return lower(job, named_inputs(inputs, _WHERE), _WHERE)


PyTorch = Estimator
"""SageMaker's name of it."""
_HEADRACE = (sys.executable, "-P", "-m", "headrace.cli.main", "run")


def _start(
    lowered: Lowered, name: str | None, stem: str, *, tied: bool, folder: Path | None
) -> StartedRun:
    run = open_run_folder(run_dir=None, name=name, script=stem)
    before = len(run.attempts())
    run.check_free()
    command = [*_HEADRACE, f"--run-dir={run.path}", *lowered.flags, lowered.script]
    with (run.path / LAUNCHER_LOG).open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            tied_command(sys.executable, command) if tied else command,
            env=env.child_environment({**lowered.variables, env.ASKED.name: lowered.asked}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,  # a notebook's ctrl-C, or its end, is no signal to the job
        )
    return StartedRun(path=run.path, number=before + 1, begin=begin, process=process)


def _check(run: StartedRun) -> None:
    try:
        run.check()
    finally:
        _forget_refused(run)
    if run.state == "Stopped":
        attempt = run.attempt
        why = f" ({attempt.reason})" if attempt is not None and attempt.reason else ""
        tell(f"headrace: {run.name} was stopped{why}: look whether it did what you expect\n")


def _forget_refused(run: StartedRun) -> None:
    """Remove the folder of a run that never was."""
    others = [path for path in run.path.iterdir() if path.name != LAUNCHER_LOG]
    if not others and not RunFolder(run.path).attempts():
        (run.path / LAUNCHER_LOG).unlink(missing_ok=True)
        run.path.rmdir()
