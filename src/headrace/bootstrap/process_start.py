"""The start of a process of a job: what its environment asks for, before its script begins.

Each part waits for the import that it hooks: loader overrides, Ray Train, offload, the probe,
MLflow, TensorBoard, or the step limit. A process that Ray has started on another machine than the
run's records is recorded there if that host is, and otherwise prints that it is not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.import_hooks import after_import
from headrace.core.source_location import SMDDP_STAND_IN_DIR


def is_on_another_machine() -> bool:
    """Whether the run's records are on another machine."""
    host = env.RECORDS_BOOT.get()
    if host is None:
        return False
    from headrace.core.boot_id import host_id

    # A container that has the host's process ids may lack the run's files.
    return host != host_id() or not Path(env.RECORDS_DIR.get() or "").is_dir()


def use_records_of_this_host() -> bool:
    """Have this process recorded with its own host, if that is; return whether it is."""
    name = env.RECORDS_LINK.get()
    if name is None:
        return False
    from headrace.core.boot_id import host_id
    from headrace.records.records_link import RecordsLink

    found = RecordsLink(name).find()
    if found is not None:  # also for the processes that this one starts
        env.RECORDS_DIR.set(str(found))
        env.RECORDS_BOOT.set(host_id())
    return found is not None


def _warn_at_first_step(module: ModuleType) -> None:
    """Print that this process is not recorded, as soon as it trains."""

    def warn(_optimizer: Any, *_: Any) -> None:
        handle.remove()
        sys.stderr.write(
            f"headrace: rank {env.RANK.get('0')} trains on {os.uname().nodename} and is not "
            "recorded: that host is in none of the job's groups, or its recording did not start\n"
        )

    handle = module.register_optimizer_step_post_hook(warn)


class StepLimit:
    """A hook that ends the script after some steps of the first optimizer that steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._optimizer: int | None = None

    def __call__(self, optimizer: Any, *_: Any) -> None:
        """Count a step; raises SystemExit after the last one, so that the script cleans up."""
        self._optimizer = self._optimizer or id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        self._left -= 1
        if self._left <= 0:
            raise SystemExit(0)


def prepare_step_limit() -> None:
    """End this process's script after HEADRACE_STOP_AFTER steps, once torch is imported."""
    steps = env.STOP_AFTER.get_int()
    if steps is not None:
        after_import(
            "torch.optim.optimizer",
            lambda module: module.register_optimizer_step_post_hook(StepLimit(steps)),
        )


def _is_worker() -> bool:
    """Whether multiprocessing has started this process by a new Python."""
    return any("multiprocessing" in word for word in sys.orig_argv)


def prepare_process() -> None:
    """Install all hooks that the environment asks for; each waits for the import it is about."""
    if env.SMDDP.get():
        sys.path.append(SMDDP_STAND_IN_DIR)  # after site-packages: the real one comes first
    if env.APPLY.get():  # first: the probe is to see the loaders' final arguments
        from headrace.bootstrap.override_hooks import prepare_overrides

        prepare_overrides()
    if env.DEVICES_RESERVED.get():
        from headrace.bootstrap.ray_hooks import prepare_ray_train

        prepare_ray_train()
    if env.OFFLOAD.get():
        from headrace.bootstrap.offload_hooks import prepare_offload

        prepare_offload()
    if env.RECORDS_DIR.get():
        if is_on_another_machine() and not use_records_of_this_host():
            after_import("torch.optim.optimizer", _warn_at_first_step)
        else:
            from headrace.observe.probe import install_hooks

            install_hooks()
    if (spool := env.SPOOL.get()) is not None:
        from headrace.decide.experiments.mlflow_hooks import prepare_mlflow

        prepare_mlflow(Path(spool))
        if env.AUTOLOG.get() and not _is_worker():
            from headrace.decide.experiments.session import autolog

            autolog()
        from headrace.bootstrap.tensorboard_hooks import prepare_tensorboard

        prepare_tensorboard(Path(spool))
    if env.STOP_AFTER.get():
        prepare_step_limit()
