"""A process that Ray has started on another machine than the one where its run is recorded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.core import env
from headrace.core.after_import import after_import


def is_elsewhere() -> bool:
    """Whether the run's records are kept on another machine."""
    boot = env.RECORDS_BOOT.get()
    if boot is None:
        return False
    from headrace.cluster.machine import boot_id

    # A container beside the run's has its machine's number, but not its files.
    return boot != boot_id() or not Path(env.RECORDS_DIR.get() or "").is_dir()


def tell_unrecorded() -> None:
    """Have this process say that it is not recorded, should it turn out to train."""
    after_import("torch.optim.optimizer", _hook)


def _hook(module: ModuleType) -> None:
    def tell(_optimizer: Any, *_: Any) -> None:
        handle.remove()
        sys.stderr.write(
            f"headrace: rank {env.RANK.get('0')} trains on {os.uname().nodename} and is not "
            "recorded: only ranks on the host that runs the script are\n"
        )

    handle = module.register_optimizer_step_post_hook(tell)
