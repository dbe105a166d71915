"""MLflow's autologging: what Lightning and others train goes to the run that is under way.

A training before the first run starts one; after the end of a run it is off until the next one, so
that MLflow makes no run of its own for a training.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.import_hooks import after_import
from headrace.decide.experiments.mlflow_hooks import (
    prepare_mlflow,
    replace_start_run,
    run_id_of,
    start_known_run,
)
from headrace.decide.experiments.run_target import ELSEWHERE, RunTarget

_LIBRARIES = {
    "lightning": "pytorch", "pytorch_lightning": "pytorch", "sklearn": "sklearn",
    "xgboost": "xgboost", "lightgbm": "lightgbm",
}  # fmt: skip
"""Libraries that train by themselves, and MLflow's names for them."""
_TAG = "mlflow.autologging"  # of the runs that MLflow's autologging starts


class _Autologging:
    """Where autologging goes in this process."""

    def __init__(self) -> None:
        self.spool: Path | None = None
        self.tracking_uri = ""
        self.start: Callable[[], None] | None = None  # starts a run, and calls `go_to`
        self._flavors: set[str] = set()  # that are on
        self._changing: set[str] = set()
        self._is_prepared = False

    def go_to(self, spool: Path, tracking_uri: str) -> None:
        self.spool, self.start = spool, None
        self._turn_all_on(tracking_uri)

    def wait(self, tracking_uri: str, start: Callable[[], None]) -> None:
        self.spool, self.start = None, start
        self._turn_all_on(tracking_uri)

    def _turn_all_on(self, tracking_uri: str) -> None:
        if tracking_uri != self.tracking_uri:
            self._turn_all_off()
            self.tracking_uri = tracking_uri
        if not self._is_prepared:
            self._is_prepared = True
            after_import("mlflow.tracking.fluent", self._hook)
        for library, flavor in _LIBRARIES.items():
            # As soon as it is imported: MLflow's own hooks for that import some of them within
            # others, which fails (3.17).
            after_import(library, functools.partial(self._turn_on, flavor))

    def end(self) -> None:
        self.spool = self.start = None
        self._turn_all_off()

    def _turn_all_off(self) -> None:
        for flavor in list(self._flavors):
            self._flavors.discard(flavor)
            self._set(flavor, disable=True)

    def _turn_on(self, flavor: str, _: Any) -> None:
        # MLflow imports one of these libraries for another.
        is_off = self.spool is None and self.start is None
        if is_off or flavor in self._changing or flavor in self._flavors:
            return
        self._changing.add(flavor)
        if self._set(flavor, disable=False):
            self._flavors.add(flavor)
        self._changing.discard(flavor)

    def _set(self, flavor: str, *, disable: bool) -> bool:
        # MLflow's thread for telemetry and its hooks of imports may wait for each other for ever.
        env.change({env.MLFLOW_NO_TELEMETRY.name: "true"})
        try:
            import mlflow

            mlflow.set_tracking_uri(self.tracking_uri)
            module = importlib.import_module(f"mlflow.{flavor}")
            module.autolog(log_models=False, disable=disable, silent=True)
        except Exception as error:  # noqa: BLE001 - the script must not feel faults of MLflow's
            print_status(f"MLflow does not log {flavor}'s training by itself: {error}")
            return False
        return True

    def _hook(self, module: Any) -> None:
        """Have the runs that autologging starts be the run under way."""
        original = module.start_run

        @functools.wraps(original)
        def start_run(run_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
            if run_id is None and _TAG in (kwargs.get("tags") or {}):
                spool = self._started_spool()
                own = None if spool is None else run_id_of(spool)
                started = None if own is None else start_known_run(module, original, own, kwargs)
                if started is not None:
                    return started
            return original(run_id, *args, **kwargs)

        replace_start_run(module, start_run)

    def _started_spool(self) -> Path | None:
        """Return the spool of the run under way, which is started if need be; None: it is off."""
        if self.start is not None:
            start, self.start = self.start, None
            try:
                start()
            except (HeadraceError, OSError) as error:
                print_status(f"no run can be started for this training: {error}")
        return self.spool


_AUTOLOGGING = _Autologging()


def log_automatically(spool: Path) -> None:
    """Have MLflow's autologging log to the run of a spool from now on; models are not saved."""
    target = RunTarget.readable(spool)
    if target is None:
        return
    if target.tracking_uri == ELSEWHERE:
        print_status("nothing is logged by itself on another machine than that of the run's folder")
        return
    prepare_mlflow(spool)
    _AUTOLOGGING.go_to(spool, target.tracking_uri)


def await_training(tracking_uri: str, start: Callable[[], None]) -> None:
    """Have `start` start a run, and log to it, once one of the libraries trains."""
    _AUTOLOGGING.wait(tracking_uri, start)


def end_autologging() -> None:
    """Have it log nothing any more."""
    _AUTOLOGGING.end()
