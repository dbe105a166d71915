"""A job's run in MLflow: begun with each attempt, ended with what the launcher says of it last.

The launcher writes to the run's spool; a sidecar with the least priority sends that on, and imports
MLflow in the launcher's place.
"""

from __future__ import annotations

import getpass
import json
import signal
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.process.sidecar import RestartedSidecar
from headrace.decide.experiments.experiment_run import SENDER
from headrace.decide.experiments.run_target import TARGET_FILE, RunTarget, tracking_uri
from headrace.decide.experiments.spool import SPOOL, Entry, SpoolWriter, now_ms
from headrace.jobs.spec import NO_TRACKING, RunOptions
from headrace.records.run_folder import Attempt, RunFolder, runs_folder

if TYPE_CHECKING:
    from headrace.report.page_data import PageData

_RUN_TYPE = "headrace.run"
_SENDER_RESTARTS = 3
_END_S = 30.0  # for MLflow's import, if the job was short, and the last entries
_STOPPED = {128 + each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)}


def begin_tracking(folder: RunFolder, attempt: Attempt, options: RunOptions) -> None:
    """Write down an attempt that starts, for MLflow; nothing where the run is not tracked.

    A run whose folder cannot be written says so, and goes on.
    """
    uri = options.tracking_uri or env.TRACKING.get()
    if uri == NO_TRACKING:
        return
    spool = folder.path / SPOOL
    try:
        if RunTarget.read(spool) is None:
            _target(folder, attempt, options, uri).write(spool)
        writer = SpoolWriter(spool)
        for entry in _first_entries(folder, attempt):
            writer.add(entry)
        writer.close()
    except (OSError, ValueError) as error:
        print_status(f"the run is not tracked: {error}")


def spool_of(folder: RunFolder) -> Path | None:
    """Return the spool of a run; None where it is not tracked."""
    spool = folder.path / SPOOL
    return spool if (spool / TARGET_FILE).exists() else None


def mlflow_variables(spool: Path) -> dict[str, str | None]:
    """Return the variables by which a script's own calls of MLflow go where its run is tracked."""
    target = RunTarget.read(spool)
    if target is None:
        return {}
    return {
        env.MLFLOW_TRACKING_URI.name: target.tracking_uri,
        env.MLFLOW_EXPERIMENT_NAME.name: target.experiment,
    }


def _target(folder: RunFolder, attempt: Attempt, options: RunOptions, uri: str | None) -> RunTarget:
    script = attempt.argv[0]
    experiment = options.experiment or env.MLFLOW_EXPERIMENT_NAME.get()
    return RunTarget(
        key=uuid.uuid4().hex,
        tracking_uri=tracking_uri(runs_folder(options.runs_dir), uri),
        experiment=experiment or Path(script).stem,
        run_name=folder.path.name,
        started_ms=round(attempt.started_s * 1000),
        run_type=_RUN_TYPE,
        git_folder=str(Path(script).absolute().parent),
    )


def _first_entries(folder: RunFolder, attempt: Attempt) -> Iterator[Entry]:
    at_ms = now_ms()
    params = {"script": attempt.argv[0], "world_size": str(attempt.world_size)}
    params |= script_params(attempt.argv[1:])
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


def script_params(words: Sequence[str]) -> dict[str, str]:
    """Return a script's arguments as params: `--lr 0.1` and `--lr=0.1` are lr; others by place.

    A flag without a value is "true"; of values after one flag all count, with spaces between.
    """
    found: dict[str, str] = {}
    name, place = "", 0
    for word in words:
        if word.startswith("-") and not _is_number(word) and word.strip("-"):
            name, has_value, value = word.lstrip("-").partition("=")
            found[name] = value if has_value else "true"
            name = "" if has_value else name
        elif name:
            found[name] = word if found[name] == "true" else f"{found[name]} {word}"
        else:
            found[f"argument_{place}"] = word
            place += 1
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _user() -> str:
    """Return the user's name; "" where this uid has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


class RunSender:
    """Sends a run's spool to MLflow while the job goes on; without a spool it does nothing."""

    def __init__(self, folder: RunFolder) -> None:
        self._spool = spool_of(folder)
        self._sidecar: RestartedSidecar | None = None
        if self._spool is not None:
            with suppress(OSError):  # no memory for another process: it can be sent later
                self._sidecar = RestartedSidecar(
                    SENDER,
                    {"spool": str(self._spool)},
                    restarts=_SENDER_RESTARTS,
                    killed=_print_killed,
                    finishes=True,
                )

    def end(self, folder: RunFolder, exit_code: int, data: PageData | None) -> None:
        """Tell MLflow how the attempt ended, and wait until it has all, for a while."""
        if self._spool is None:
            return
        writer = SpoolWriter(self._spool)
        try:
            for entry in _last_entries(folder, exit_code, data):
                writer.add(entry)
        except (HeadraceError, OSError) as error:
            print_status(f"what the run measured is not tracked: {error}")
        writer.close()
        if self._sidecar is None or self._sidecar.end({"end": True}, patience_s=_END_S) is None:
            print_status(
                f"MLflow does not have all of the run yet: `headrace runs sync` sends what "
                f"{self._spool} holds."
            )


def _print_killed(_code: int, has_restarted: bool) -> None:  # noqa: FBT001 - a callback
    if not has_restarted:
        print_status(
            "the process that sends to MLflow was killed; `headrace runs sync` sends it later"
        )


def _last_entries(folder: RunFolder, exit_code: int, data: PageData | None) -> Iterator[Entry]:
    at_ms = now_ms()
    values: dict[str, Any] = {"exit_code": exit_code}
    if data is not None:
        from headrace.report.run_metrics import run_metrics

        values |= run_metrics(data)
        verdict = {"headrace.verdict": data.diagnosis.verdict.sentence}
        yield {"kind": "tags", "at_ms": at_ms, "values": verdict}
    yield {"kind": "summary", "at_ms": at_ms, "values": values}
    for name in ("diagnosis.json", "report.html"):
        file = folder.path / name
        if data is not None and file.exists():
            yield {"kind": "artifact", "at_ms": at_ms, "path": str(file), "folder": ""}
    status = "FINISHED" if exit_code == 0 else "KILLED" if exit_code in _STOPPED else "FAILED"
    yield {"kind": "status", "at_ms": at_ms, "status": status}
