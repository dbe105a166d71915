"""A job's run in MLflow: begun with each attempt, ended with what the launcher says of it last.

The launcher writes to the run's spool; a sidecar with a lower priority sends that on, and imports
MLflow in the launcher's place.
"""

from __future__ import annotations

import getpass
import json
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.process.sidecar import RestartedSidecar
from headrace.decide.experiments.experiment_run import SENDER, unsent_message
from headrace.decide.experiments.run_target import (
    ARGUMENT_PREFIX,
    ELSEWHERE,
    JOB_PREFIX,
    JOB_RUN_TYPE,
    NO_TRACKING,
    TARGET_FILE,
    RunTarget,
    target_to_go_on,
    tracking_uri,
)
from headrace.decide.experiments.spool import RUNNING, SPOOL, Entry, SpoolWriter, encodable, now_ms
from headrace.jobs.spec import RunOptions
from headrace.records.job_settings import attempt_params, request_settings
from headrace.records.run_folder import Attempt, RunFolder, runs_folder

if TYPE_CHECKING:
    from headrace.report.page_data import PageData

_ARTIFACTS = "headrace"
"""Where the run's artifacts of ours go: a script may log a report.html of its own."""
_SENDER_RESTARTS = 3
_END_S = 60.0  # for MLflow's import, if the job was short, and the last entries
_STOPPED = {128 + each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)}


def check_experiment(folder: RunFolder, options: RunOptions) -> None:
    """Raise UsageError where a run has been tracked in another experiment than the one asked for.

    It would go on there, with the params of its first attempt. A copy does not: see
    `RunTarget.is_of_another_run`.
    """
    spool, asked = folder.path / SPOOL, options.experiment
    target = RunTarget.readable(spool)
    if target is None or asked in {None, target.experiment}:
        return
    if not target.is_of_another_run(spool):
        raise UsageError(
            f"--experiment {asked}: run {folder.path.name} is of experiment "
            f"{target.experiment!r} ({folder.path}). Choose another --name, or leave out "
            "--experiment to go on with that run."
        )


def begin_tracking(
    folder: RunFolder, attempt: Attempt, options: RunOptions, environment: Mapping[str, str]
) -> None:
    """Write down an attempt that starts, for MLflow; nothing where the run is not tracked.

    `environment` has the variables that the user gives the script, which may name the experiment.
    A run whose folder cannot be written, or does not say where it is tracked, says so, and goes on.
    """
    uri = options.tracking_uri or env.TRACKING.get()
    spool = folder.path / SPOOL
    try:
        target = target_to_go_on(spool)
        if uri == NO_TRACKING:
            return
        if target is None:
            _target(folder, attempt, options, uri, environment).write(spool)
        writer = SpoolWriter(spool)
        for entry in _first_entries(folder, attempt):
            writer.add(entry)
        writer.close()
    except (OSError, ValueError, HeadraceError) as error:
        print_status(f"the run is not tracked: {error}")


def spool_of(folder: RunFolder) -> Path | None:
    """Return the spool of a run; None where it is not tracked."""
    spool = folder.path / SPOOL
    return None if RunTarget.readable(spool) is None else spool


def target_elsewhere(folder: RunFolder) -> dict[str, bytes]:
    """Return the file by which ranks on another machine know that the run is tracked, if it is.

    What they log goes to the run's spool here: where that is sent to is no concern of theirs.
    """
    target = RunTarget.readable(folder.path / SPOOL)
    if target is None:
        return {}
    known = asdict(replace(target, tracking_uri=ELSEWHERE))
    return {f"{SPOOL}/{TARGET_FILE}": json.dumps(known).encode()}


def mlflow_variables(spool: Path) -> dict[str, str | None]:
    """Return the variables by which a script's own calls of MLflow go where its run is tracked."""
    target = RunTarget.readable(spool)
    if target is None:
        return {}
    found: dict[str, str | None] = {
        env.MLFLOW_TRACKING_URI.name: target.tracking_uri,
        env.TRACKING.name: None,  # which may name another place
    }
    if not target.experiment_id:  # else the user has set it
        found |= {
            env.MLFLOW_EXPERIMENT_NAME.name: target.experiment,
            env.MLFLOW_EXPERIMENT_ID.name: None,
        }
    return found


def _target(
    folder: RunFolder, attempt: Attempt, options: RunOptions, uri: str | None,
    environment: Mapping[str, str],
) -> RunTarget:  # fmt: skip
    script = attempt.argv[0]
    experiment, experiment_id = _experiment(options, environment)
    return RunTarget(
        key=uuid.uuid4().hex,
        tracking_uri=tracking_uri(runs_folder(options.runs_dir), uri),
        experiment=encodable(experiment or Path(script).stem),
        experiment_id=experiment_id,
        run_name=encodable(folder.path.name),
        started_ms=round(attempt.started_s * 1000),
        run_type=JOB_RUN_TYPE,
        git_folder=str(Path(script).absolute().parent),
    )


def _experiment(options: RunOptions, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name or the number of a run's experiment, whichever is given first.

    The script's variables count unless they are about another place of MLflow's.
    """
    if options.experiment:
        return options.experiment, ""
    is_elsewhere = bool(environment.get(env.MLFLOW_TRACKING_URI.name))
    here = env.whole_environment()
    for variables in (here,) if is_elsewhere else (environment, here):
        if name := variables.get(env.MLFLOW_EXPERIMENT_NAME.name):
            return name, ""
        if number := variables.get(env.MLFLOW_EXPERIMENT_ID.name):
            return "", number
    return "", ""


def _first_entries(folder: RunFolder, attempt: Attempt) -> Iterator[Entry]:
    at_ms = now_ms()
    yield {"kind": "status", "at_ms": at_ms, "status": RUNNING, "attempt": attempt.number}
    params = {
        f"{JOB_PREFIX}script": attempt.argv[0],
        f"{JOB_PREFIX}world_size": str(attempt.world_size),
    }
    arguments = attempt_params(attempt)
    params |= {f"{ARGUMENT_PREFIX}{name}": value for name, value in arguments.items()}
    settings = request_settings(attempt.asked)
    params |= {f"{JOB_PREFIX}{name}": value for name, value in settings.items()}
    yield {"kind": "params", "at_ms": at_ms, "values": params}
    tags = {
        "mlflow.source.name": attempt.argv[0],
        "mlflow.source.type": "LOCAL",
        "mlflow.user": _user(),
        "headrace.command": " ".join(attempt.command),
        "headrace.run_folder": str(folder.path),
        "headrace.attempt": str(attempt.number),
        "headrace.host": socket.gethostname(),
    }
    tags |= {f"headrace.version.{name}": each for name, each in attempt.versions.items()}
    if attempt.groups:
        tags["headrace.groups"] = json.dumps(attempt.groups)
    yield {"kind": "tags", "at_ms": at_ms, "values": tags}


def _user() -> str:
    """Return the user's name; "" where this uid has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


class RunSender:
    """Sends a run's spool to MLflow while the job goes on; without a spool it does nothing."""

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self._spool = spool_of(folder)
        self._attempt = attempt
        self._began_ms, self._began_s = now_ms(), time.monotonic()
        self._sidecar: RestartedSidecar | None = None
        if self._spool is not None:
            with suppress(OSError):  # no memory for another process: it can be sent later
                self._sidecar = RestartedSidecar(
                    SENDER,
                    {"spool": str(self._spool)},
                    restarts=_SENDER_RESTARTS,
                    killed=_ignore_kill,  # said at the end, if another one could not make up for it
                    finishes=True,
                )

    def end(self, folder: RunFolder, exit_code: int, data: PageData | None) -> None:
        """Tell MLflow how the attempt ended, and wait until it has all, for a while."""
        if self._spool is None:
            return
        writer = SpoolWriter(self._spool)
        try:
            for entry in () if data is None else _measured(folder, data):
                writer.add(entry)
        except (HeadraceError, OSError, ValueError) as error:
            print_status(f"what the run measured is not tracked: {error}")
        for entry in _end(exit_code, self._now_ms(), self._attempt):
            writer.add(entry)
        writer.close()
        if self._sidecar is None or self._sidecar.end({"end": True}, patience_s=_END_S) != 0:
            print_status(unsent_message(self._spool))

    def _now_ms(self) -> int:
        """Return the time of the end, which is after the begin though the clock may be set back."""
        elapsed_ms = round((time.monotonic() - self._began_s) * 1000)
        return max(now_ms(), self._began_ms + elapsed_ms)


def _ignore_kill(_code: int, _has_restarted: bool) -> None:  # noqa: FBT001 - a callback
    pass


def _measured(folder: RunFolder, data: PageData) -> Iterator[Entry]:
    from headrace.report.run_metrics import phase_series, run_metrics

    at_ms = now_ms()
    verdict = {"headrace.verdict": data.diagnosis.verdict.sentence}
    yield {"kind": "tags", "at_ms": at_ms, "values": verdict}
    yield _numbers(at_ms, run_metrics(data))
    for step, ended_ms, phases in phase_series(data):
        yield {
            "kind": "metrics", "at_ms": ended_ms, "step": step, "values": phases,
            "attempt": data.attempt,
        }  # fmt: skip
    for name in ("diagnosis.json", "report.html"):
        file = folder.path / name
        if file.exists():
            yield {"kind": "artifact", "at_ms": at_ms, "path": str(file), "folder": _ARTIFACTS}


def _numbers(at_ms: int, values: Mapping[str, float]) -> Entry:
    """Return numbers about the job, under names that a script's own metrics do not have."""
    named = {f"{JOB_PREFIX}{name}": value for name, value in values.items()}
    return {"kind": "summary", "at_ms": at_ms, "values": named}


def _end(exit_code: int, at_ms: int, attempt: int) -> Iterator[Entry]:
    yield _numbers(at_ms, {"exit_code": exit_code})
    status = "FINISHED" if exit_code == 0 else "KILLED" if exit_code in _STOPPED else "FAILED"
    yield {"kind": "status", "at_ms": at_ms, "status": status, "attempt": attempt}
