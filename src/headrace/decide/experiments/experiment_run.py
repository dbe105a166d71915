"""A run that a script logs to: params, metrics, time series and artifacts, by its spool."""

from __future__ import annotations

import json
import numbers
import pickle
import sys
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.core.process.exit_code import write_exit_code_at_end
from headrace.core.process.sidecar import Sidecar
from headrace.decide.experiments.artifact_copies import copy_artifact, new_folder
from headrace.decide.experiments.run_target import ELSEWHERE, TEXT_METRIC_PREFIX, RunTarget
from headrace.decide.experiments.sent_state import wait_until_sent
from headrace.decide.experiments.spool import RUNNING, SPOOL, Entry, SpoolWriter, now_ms

SENDER = "headrace.decide.experiments.sender_process"
_SEND_S = 60.0  # for MLflow's import and a slow server
_END_S = 60.0
_MODELS_FOLDER = PurePosixPath("models")
_NAMES, _VALUES = {str}, {float}  # the types that most calls have
_NUMBERS = {float, int, bool}
_MOST_CHECKED = 64  # sets of names; a script logs a few again and again
LARGEST_STEP = 2**63 - 1


class LoggedRun:
    """A run that is under way, and to which any thread or forked process of the script may log.

    Args:
        folder: The run's folder, with its spool in it.
        name: What it is called.
        sends: Whether this process has the run's spool sent to MLflow; a job's launcher does so
            for all of its ranks.
        experiment: That it is a run of.
        tracked: Whether it goes to MLflow at all; otherwise what is logged is checked and dropped.
        sends_files: Whether artifacts can be read where the spool is sent from.

    Attributes:
        writer: Of its spool; None where it is not tracked.
        is_of_job: Whether it is the run of the job that this process is part of.
        checked_names: Names of time series that were found right, as calls had them.
        last_names: The last of these, which most calls have: to hash a hundred takes longer.
    """

    def __init__(
        self, folder: Path, name: str, *, sends: bool, experiment: str = "", tracked: bool = True,
        sends_files: bool = True,
    ) -> None:  # fmt: skip
        self.name, self.experiment = name, experiment
        self.folder = folder
        self.is_of_job = not sends
        self.writer = SpoolWriter(folder / SPOOL) if tracked else None
        self.checked_names: set[tuple[str, ...]] = set()
        self.last_names: tuple[str, ...] = ()
        self._sender: Sidecar | None = None
        self._sends_files = sends_files
        if sends:
            self._add({"kind": "status", "at_ms": now_ms(), "status": RUNNING})
            self._sender = Sidecar(SENDER, {"spool": str(folder / SPOOL)})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters, which cannot change; values are logged as texts."""
        values = {_checked_name(name): str(value) for name, value in _checked(params).items()}
        self._add({"kind": "params", "at_ms": now_ms(), "values": values})

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Log numbers that describe the run; a later value replaces an earlier one."""
        values = _numbers(metrics)
        self._add({"kind": "summary", "at_ms": now_ms(), "values": values})

    def log_text_metrics(self, metrics: Mapping[str, str]) -> None:
        """Log texts that describe the run; a later one replaces an earlier one."""
        values = {f"{TEXT_METRIC_PREFIX}{_checked_name(n)}": text for n, text in metrics.items()}
        self._add({"kind": "tags", "at_ms": now_ms(), "values": values})

    def log_time_series_metrics(
        self, metrics: Mapping[str, Any], step: int | None = None, wall_time: Any = None
    ) -> None:
        """Log a point of time series.

        Args:
            metrics: Numbers by name: Python's, NumPy's, or tensors of one element. One on a device
                is copied there and read later, so that the device is not waited for.
            step: Of all of them; None: one more than the last of each.
            wall_time: In seconds since 1970, a datetime or Vertex's Timestamp; None: now.
        """
        at_ms = now_ms() if wall_time is None else _as_ms(wall_time)
        if step is not None and type(step) is not int:
            step = _as_step(step)
        if step is not None and not -LARGEST_STEP <= step <= LARGEST_STEP:
            raise UsageError(f"step {step} is too large: MLflow's have 63 bits.")
        self._add({"kind": "metrics", "at_ms": at_ms, "values": _numbers(metrics), "step": step})
        if len(self.checked_names) >= _MOST_CHECKED:
            self.checked_names.clear()
        self.last_names = tuple(metrics)
        self.checked_names.add(self.last_names)

    def log_artifact(self, path: str | Path, folder: str = "") -> None:
        """Log a file, or a folder with all in it, as it is now.

        Without `folder` it goes to the top of the run's artifacts, a folder by its own name; with
        it, a file or what is in a folder goes there. Raises UsageError: it is not there.
        """
        found = Path(path).expanduser().absolute()
        if found.name == "..":
            found = found.resolve()
        if not found.exists():
            raise UsageError(f"log_artifact: {found} does not exist.")
        if not self._sends_files:
            print_status(f"{found} is on another machine than the run, and is not logged")
            return
        if self.writer is None:
            return
        copy = found
        try:
            copy = copy_artifact(self.writer.folder, found)
        except OSError as error:  # such as a full disk
            print_status(
                f"{found} cannot be copied to {self.writer.folder}, and is logged as it is when "
                f"it is sent: {error}"
            )
        self._add_artifact(copy, found, str(folder))

    def _add_artifact(self, copy: Path, original: Path, folder: str) -> None:
        self._add({
            "kind": "artifact", "at_ms": now_ms(), "path": str(copy), "original": str(original),
            "folder": folder,
        })  # fmt: skip

    def log_model(self, model: Any, name: str = "model") -> None:
        """Log a model as an artifact, by torch.save: of a module its state_dict.

        It is `models/NAME.pt`; where torch is not imported, `models/NAME.pkl`, pickled. Raises
        UsageError: it cannot be saved.
        """
        if not self._sends_files:
            print_status(f"model {name} is on another machine than the run, and is not logged")
            return
        place = PurePosixPath(_checked_name(name))
        if place.is_absolute() or ".." in place.parts or not place.name:
            raise UsageError(f"log_model: {name!r} names no place below {_MODELS_FOLDER}/.")
        torch = sys.modules.get("torch")  # of the script that has the model
        state = model.state_dict() if hasattr(model, "state_dict") else model
        if self.writer is None:
            return
        try:
            with new_folder(self.writer.folder) as new:
                file = new / f"{place.name}.{'pkl' if torch is None else 'pt'}"
                if torch is None:
                    file.write_bytes(pickle.dumps(state))
                else:
                    torch.save(state, file)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise UsageError(f"log_model: {name} cannot be saved: {error}") from error
        except (OSError, RuntimeError) as error:  # such as a full disk, by torch
            print_status(f"model {name} is not logged: {self.writer.folder}: {error}")
            return
        self._add_artifact(file, file, str(_MODELS_FOLDER / place.parent))

    def _add(self, entry: Entry) -> None:
        if self.writer is not None:
            self.writer.add(entry)

    def flush(self) -> bool:
        """Have MLflow get all that was logged until now; return whether it has.

        It is waited for a minute at most; on another machine than the run's, not at all.
        """
        if self.writer is None:
            return False
        self.writer.flush()
        if self._sender is None:  # the job's launcher has what all of its ranks logged sent
            return self._sends_files and wait_until_sent(self.writer.folder, _SEND_S)
        self._sender.send({"send": True})
        try:
            answer = self._sender.receive(_SEND_S)
        except TimeoutError:
            return False
        return answer is not None and bool(answer["sent"])

    def end(self, status: str = "FINISHED") -> None:
        """End the run; it waits for MLflow, for half a minute at most."""
        if self.writer is None:
            return
        if self._sender is None:  # a job's run ends with the job
            self.writer.flush()
            return
        self._add({"kind": "status", "at_ms": now_ms(), "status": status})
        self.writer.close()
        if self._sender.end({"end": True}, patience_s=_END_S) != 0:
            print_status(unsent_message(self.folder / SPOOL))

    def end_by_exit_code(self) -> bool:
        """End the run once this process has ended, which must be soon: as failed if not by 0.

        What was logged is sent before, which is waited for, for a minute at most. False: there is
        no such way, and nothing was done.
        """
        sender = self._sender
        if self.writer is None or sender is None or not write_exit_code_at_end(sender.input_fd):
            return False
        if not self.flush():
            print_status(unsent_message(self.folder / SPOOL))
        self.writer.close()
        sender.send({"exit_code_follows": True})
        return True


def job_run() -> LoggedRun | None:
    """Return the run of the job that this process is part of; None outside of jobs."""
    folder = job_folder()
    if folder is None:
        return None
    target = RunTarget.readable(folder / SPOOL)
    if target is None:
        print_status("the job is not tracked: what the script logs is dropped")
        return LoggedRun(folder, folder.name, sends=False, tracked=False)
    is_elsewhere = target.tracking_uri == ELSEWHERE
    return LoggedRun(
        folder, target.run_name, sends=False, experiment=target.experiment,
        sends_files=not is_elsewhere,
    )  # fmt: skip


def job_folder() -> Path | None:
    """Return the run's folder in a job's process; None outside of jobs.

    Ray's workers that a script starts know of the records alone, which lie in that folder.
    """
    if (folder := env.RUN_DIR.get()) is not None:
        return Path(folder)
    records = env.RECORDS_DIR.get()
    return None if records is None else Path(records).parents[1]


def unsent_message(spool: Path) -> str:
    """Return the sentence by which a run that MLflow does not have all of is reported."""
    return (
        f"MLflow does not have all of the run yet: `headrace runs sync` sends what {spool} holds."
    )


def _checked(params: Any) -> Mapping[str, Any]:
    if not isinstance(params, Mapping):
        raise UsageError(f"Give a dict of names and values, not {type(params).__name__}.")
    return params


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(f"{name!r} names no param or metric: give a text that is not empty.")
    return name


def _numbers(metrics: Any) -> dict[str, Any]:
    """Return metrics with their values as `_number` returns them; raises UsageError."""
    if type(metrics) is dict:  # what most calls have: of a hundred it takes a tenth of the time
        names, values = {*map(type, metrics)}, {*map(type, metrics.values())}
        if names == _NAMES and values == _VALUES and "" not in metrics:
            return metrics.copy()
    return {_checked_name(n): _number(n, value) for n, value in _checked(metrics).items()}


def _as_ms(wall_time: Any) -> int:
    """Return a time in ms: seconds, a datetime or Vertex's Timestamp; raises UsageError."""
    try:
        if hasattr(wall_time, "ToMilliseconds"):
            return int(wall_time.ToMilliseconds())
        seconds = wall_time.timestamp() if isinstance(wall_time, datetime) else wall_time
        return round(float(seconds) * 1000)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"wall_time {wall_time!r}: {error}.") from error


def _as_step(step: Any) -> int:
    """Return a step as a whole number; raises UsageError."""
    try:
        return int(step)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"step {step!r}: {error}.") from error


def _number(name: object, value: Any) -> Any:
    """Return a metric's value as a number, or a copy of a tensor on a device, which is one later.

    Raises UsageError where it is none.
    """
    try:
        if type(value) in _NUMBERS:
            return float(value)
        device = getattr(getattr(value, "device", None), "type", "cpu")
        if device != "cpu" and value.numel() == 1:
            return value.detach().clone()
        number = value.item() if hasattr(value, "item") else value  # torch's, NumPy's
        if type(number) in _NUMBERS or isinstance(number, (numbers.Real, Decimal)):
            return float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError, AttributeError):
        pass
    from headrace.records.redaction import hide_secrets  # not where a script starts

    raise UsageError(f"metric {name!r}: {_shown(hide_secrets(value, str(name)))} is no number.")


def _shown(value: Any) -> str:
    """Return a value as an error shows it."""
    try:
        text = json.dumps(value) if isinstance(value, (str, dict, list)) else str(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."
