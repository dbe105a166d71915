"""Ray Train in a rank, whose run holds the devices that Ray Train would wait for without end."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.after_import import after_import
from headrace.core.errors import UsageError


def prepare_ray_train() -> None:
    """Have a trainer of Ray Train that wants devices fail at once."""
    after_import("ray.train.v2.api.data_parallel_trainer", _hook)


def _hook(module: ModuleType) -> None:
    original = module.DataParallelTrainer.fit

    @functools.wraps(original)
    def fit(trainer: Any) -> Any:
        if trainer.scaling_config.use_gpu and not _has_devices(trainer):
            raise UsageError(
                f"{type(trainer).__name__} asks Ray for devices, and all of this group's are its "
                "ranks': Ray has none left to give out, and would wait for ever. Run the script "
                "with `--driver`: it then runs once, and every device is Ray's."
            )
        return original(trainer)

    module.DataParallelTrainer.fit = fit


def _has_devices(trainer: Any) -> bool:
    """Whether a trainer needs none of Ray's, or its Ray, perhaps one of its own, may have some."""
    import ray

    if getattr(trainer, "running_in_local_mode", False):
        return True
    if not ray.is_initialized():
        ray.init()  # as Ray Train is about to
    is_the_jobs = ray.get_runtime_context().gcs_address == env.RAY_ADDRESS.get()
    return not is_the_jobs or ray.available_resources().get("GPU", 0) > 0
