"""What the environment asks of a process of a job, prepared before its script begins."""

from __future__ import annotations

import sys

from headrace.core import env
from headrace.core.places import SMDDP


def begin() -> None:
    """Prepare what is asked for; each part waits for the import that it is about."""
    if env.SMDDP.get():
        sys.path.append(SMDDP)  # after site-packages: the real one comes first
    if env.APPLY.get():  # first: the probe is to see what loaders have become
        from headrace.enter.overrides import prepare_overrides

        prepare_overrides()
    if env.DEVICES_HELD.get():
        from headrace.enter.ray_train import prepare_ray_train

        prepare_ray_train()
    if env.OFFLOAD.get():
        from headrace.enter.offload import prepare_offload

        prepare_offload()
    if env.RECORDS_DIR.get():
        from headrace.enter.elsewhere import is_elsewhere, tell_unrecorded

        if is_elsewhere():
            tell_unrecorded()
        else:
            from headrace.observe.probe.hooks import prepare

            prepare()
    if env.STOP_AFTER.get():
        from headrace.enter.stop import prepare_stop

        prepare_stop()
