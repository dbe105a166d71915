"""MLflow in a job's script: the first run that the script starts is the job's own.

So what it logs by `mlflow` itself, or has Trainer's callback or Lightning's logger log, is beside
what Headrace measures, for all ranks and after restarts. Where the script tracks to another server,
its runs stay its own.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.import_hooks import after_import
from headrace.decide.experiments.run_target import ELSEWHERE, SENT_FILE, RunTarget

_EXPERIMENT_ATTRIBUTE = "_active_experiment_id"  # of mlflow.tracking.fluent
_NAME_TAG = "headrace.script_run_name"
_CHANGED_PARAM = "Changing param values is not allowed"  # MLflow's refusal
_LIGHTNINGS_LOGGERS = ("lightning.pytorch.loggers.mlflow", "pytorch_lightning.loggers.mlflow")
_PREPARED: set[Path] = set()
_FIRST_PARAMS_STAY: set[str] = set()
"""Runs whose params cannot change, in this process."""
_RUN_S, _POLL_S = 60.0, 0.1  # for the sender to import MLflow, too, and create the run


def prepare_mlflow(spool: Path) -> None:
    """Have the script's first MLflow run be that of a spool, once it imports MLflow."""
    target = RunTarget.readable(spool)
    if target is not None and target.tracking_uri != ELSEWHERE and spool not in _PREPARED:
        _PREPARED.add(spool)
        offer = _Offer(spool, target)
        after_import("mlflow.tracking.fluent", functools.partial(_hook, offer))
        for module in _LIGHTNINGS_LOGGERS:
            after_import(module, functools.partial(_hook_logger, offer))


class _Offer:
    """The job's run, for the first run that the script starts at the place where it is tracked."""

    def __init__(self, spool: Path, target: RunTarget) -> None:
        self._spool, self._target = spool, target
        self._is_taken = False

    def take(self, tracking_uri: str) -> str | None:
        """Return the id of the job's run, once; None where the script's has to be its own."""
        if self._is_taken or tracking_uri != self._target.tracking_uri or env.MLFLOW_RUN_ID.get():
            return None
        self._is_taken = True
        run_id = run_id_of(self._spool)
        if run_id is None:
            _report(f"the job's was not there in {_RUN_S:.0f} s")
        return run_id


def _hook(offer: _Offer, module: Any) -> None:
    original = module.start_run

    @functools.wraps(original)
    def start_run(run_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if run_id is None and not kwargs.get("nested"):
            job_run = _offered_run(offer, module)
            if job_run is not None:
                started = start_known_run(module, original, job_run, kwargs)
                if started is not None:
                    return started
        return original(run_id, *args, **kwargs)

    replace_start_run(module, start_run)


def replace_start_run(module: Any, start_run: Any) -> None:
    """Put a function in the place of `start_run` of mlflow.tracking.fluent, and of mlflow."""
    original, module.start_run = module.start_run, start_run
    package: Any = sys.modules.get("mlflow")
    if getattr(package, "start_run", None) is original:  # it was imported before
        package.start_run = start_run


def _offered_run(offer: _Offer, module: Any) -> str | None:
    """Return the job's run for the script's first one; None where that has to be its own."""
    try:
        from mlflow.tracking import get_tracking_uri

        if module.active_run() is not None or not hasattr(module, _EXPERIMENT_ATTRIBUTE):
            return None
        return offer.take(get_tracking_uri())
    except Exception as error:  # noqa: BLE001 - the script must not feel faults of ours
        _report(error)
        return None


def _hook_logger(offer: _Offer, module: Any) -> None:
    """Have Lightning's logger, which does without `start_run`, log to the job's run."""
    kind = module.MLFlowLogger
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces that method
        original(self, *args, **kwargs)
        try:
            if self._run_id is None:
                self._run_id = offer.take(self._tracking_uri)
                if self._run_id is not None:
                    _keep_first_params(self._run_id)
        except Exception as error:  # noqa: BLE001 - such as those of another release
            _report(error)

    kind.__init__ = __init__


def start_known_run(module: Any, start_run: Any, job_run: str, kwargs: dict[str, Any]) -> Any:
    """Start a run that is known in the script, under its own name; None: MLflow refuses that."""
    kwargs = dict(kwargs)
    name = kwargs.pop("run_name", None)  # which would rename the job's
    if name is not None:
        kwargs["tags"] = {**(kwargs.get("tags") or {}), _NAME_TAG: name}
    chosen = getattr(module, _EXPERIMENT_ATTRIBUTE)  # MLflow refuses runs of others
    setattr(module, _EXPERIMENT_ATTRIBUTE, None)
    try:
        _keep_first_params(job_run)
        return start_run(job_run, **kwargs)
    except Exception as error:  # noqa: BLE001 - such as that of a run that was deleted
        _report(error)
        return None
    finally:
        setattr(module, _EXPERIMENT_ATTRIBUTE, chosen)


def _keep_first_params(job_run: str) -> None:
    """Have params of the job's run stay as an attempt before has logged them.

    MLflow raises where a param changes, and without us each attempt had a run of its own.
    """
    if job_run in _FIRST_PARAMS_STAY:
        return
    _FIRST_PARAMS_STAY.add(job_run)
    import mlflow

    kind: Any = mlflow.MlflowClient
    log_param, log_batch = kind.log_param, kind.log_batch

    @functools.wraps(log_param)
    def log_one(client: Any, run_id: str, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return log_param(client, run_id, key, value, *args, **kwargs)
        except Exception as error:
            if run_id != job_run or _CHANGED_PARAM not in str(error):
                raise
            from headrace.records.redaction import shown_value  # not where a script starts

            shown = shown_value(value, key)
            print_status(f"param {key} stays as an attempt before has logged it, not {shown}")
            return value

    @functools.wraps(log_batch)
    def log_several(client: Any, run_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return log_batch(client, run_id, *args, **kwargs)
        except Exception as error:
            params = kwargs.get("params", ())
            if run_id != job_run or not params or _CHANGED_PARAM not in str(error):
                raise
            kept = [each for each in params if each.key not in client.get_run(run_id).data.params]
            print_status("params stay as an attempt before has logged them")
            return log_batch(client, run_id, *args, **{**kwargs, "params": kept})

    kind.log_param, kind.log_batch = log_one, log_several


def run_id_of(spool: Path) -> str | None:
    """Wait until a spool's run is in MLflow, and return its id; None where that takes too long."""
    deadline = time.monotonic() + _RUN_S
    while time.monotonic() < deadline:
        try:
            run_id: str = json.loads((spool / SENT_FILE).read_text(encoding="utf-8"))["run_id"]
        except FileNotFoundError:
            run_id = ""
        if run_id:
            return run_id
        time.sleep(_POLL_S)
    return None


def _report(why: object) -> None:
    print_status(f"the script's MLflow run is one of its own: {why}")
