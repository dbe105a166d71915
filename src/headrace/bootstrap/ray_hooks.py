"""The hooks into Ray: addresses of nodes on emulated hosts; Ray Train in a rank, which is refused.

Ray calls `use_host_address`, named by the variable RAY_START_HOOK, with the parameters of a node:
by itself Ray finds one address for all hosts that are emulated on a machine, and gives the workers
of each the same ports. Ray Train in a rank would wait forever for devices that the ranks hold:
with the hook it fails at once.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.import_hooks import after_import
from headrace.core.warning_frames import skipped_by_warnings

HOOK = "headrace.bootstrap.ray_hooks.use_host_address"
DEFAULT_PORTS = {
    "min_worker_port": 10002,
    "max_worker_port": 19999,
    "dashboard_agent_listen_port": 52365,
}
"""The defaults of `ray start`, by option name."""


def use_host_address(node: Any, _is_head: object) -> None:
    """Set this host's address and folder, and free ports, in Ray's `RayParams`, where unset."""
    # A node that joins would use the head's folder, where this host's `ray status` does not look.
    folder = f"{env.RAY_TMPDIR.get('/tmp')}/ray"  # noqa: S108 - Ray's own default
    node.update_if_absent(node_ip_address=env.HOST_ADDRESS.get(), temp_dir=folder)
    for name, default in DEFAULT_PORTS.items():
        if getattr(node, name) == default:
            setattr(node, name, 0)  # any free port


def prepare_ray_train() -> None:
    """Make a Ray Train trainer that needs devices fail at once."""
    after_import("ray.train.v2.api.data_parallel_trainer", _hook_trainer)


def _hook_trainer(module: ModuleType) -> None:
    original = module.DataParallelTrainer.fit

    @functools.wraps(original)
    @skipped_by_warnings
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
    """Whether a trainer needs no devices of Ray, or its Ray cluster has free ones."""
    import ray

    if getattr(trainer, "running_in_local_mode", False):
        return True
    if not ray.is_initialized():
        ray.init()  # as Ray Train is about to
    is_the_jobs = ray.get_runtime_context().gcs_address == env.RAY_ADDRESS.get()
    return not is_the_jobs or ray.available_resources().get("GPU", 0) > 0
