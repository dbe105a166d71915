"""MLflow in a job's script: the first run that the script starts is the job's own.

So what it logs by `mlflow` itself, or has Trainer's callback log, is beside what Headrace measures,
for all ranks and after restarts. Where the script tracks to another server, its runs stay its own.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.import_hooks import after_import
from headrace.decide.experiments.run_target import SENT_FILE, RunTarget

_EXPERIMENT_ATTRIBUTE = "_active_experiment_id"  # of mlflow.tracking.fluent
_NAME_TAG = "headrace.script_run_name"
_RUN_S, _POLL_S = 30.0, 0.1  # for the sender to import MLflow, too, and create the run


def prepare_mlflow(spool: Path) -> None:
    """Have the script's first MLflow run be that of a spool, once it imports MLflow."""
    target = RunTarget.read(spool)
    if target is not None:
        after_import("mlflow.tracking.fluent", functools.partial(_hook, spool, target))


def _hook(spool: Path, target: RunTarget, module: Any) -> None:
    original = module.start_run
    is_first = True

    @functools.wraps(original)
    def start_run(run_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        if run_id is not None or kwargs.get("nested") or not is_first:
            return original(run_id, *args, **kwargs)
        is_first = False
        job_run = _offered_run(spool, target, module)
        if job_run is None:
            return original(None, *args, **kwargs)
        name = kwargs.pop("run_name", None)  # which would rename the job's
        if name is not None:
            kwargs["tags"] = {**(kwargs.get("tags") or {}), _NAME_TAG: name}
        chosen = module._active_experiment_id  # noqa: SLF001 - MLflow refuses runs of others
        module._active_experiment_id = None  # noqa: SLF001 - as above
        try:
            return original(job_run, *args, **kwargs)
        finally:
            module._active_experiment_id = chosen  # noqa: SLF001 - as above

    module.start_run = start_run


def _offered_run(spool: Path, target: RunTarget, module: Any) -> str | None:
    """Return the job's run for the script's first one; None where that has to be its own."""
    try:
        from mlflow.tracking import get_tracking_uri

        if env.MLFLOW_RUN_ID.get() or module.active_run() is not None:
            return None
        if get_tracking_uri() != target.tracking_uri or not hasattr(module, _EXPERIMENT_ATTRIBUTE):
            return None
        run_id = _run_id(spool)
    except Exception as error:  # noqa: BLE001 - the script must not feel faults of ours
        print_status(f"the script's MLflow run is one of its own: {error}")
        return None
    if run_id is None:
        print_status(
            f"the script's MLflow run is one of its own: the job's was not there in {_RUN_S:.0f} s"
        )
    return run_id


def _run_id(spool: Path) -> str | None:
    """Wait until the job's run is in MLflow, and return its id; None where that takes too long."""
    deadline = time.monotonic() + _RUN_S
    while time.monotonic() < deadline:
        try:
            run_id: str = json.loads((spool / SENT_FILE).read_text(encoding="utf-8"))["run_id"]
        except FileNotFoundError:
            time.sleep(_POLL_S)
            continue
        return run_id or None
    return None
