"""`ray start` in a script on an emulated host: its node is that host's, not the machine's.

Ray calls this by the variable RAY_START_HOOK, with the node as the command line describes it. By
itself Ray finds one address for all hosts that are emulated on a machine, and gives the workers of
each the same ports.
"""

from __future__ import annotations

from typing import Any

from headrace.core import env

HOOK = "headrace.enter.ray_start.be_this_host"
USUAL_PORTS = {
    "min_worker_port": 10002,
    "max_worker_port": 19999,
    "dashboard_agent_listen_port": 52365,
}
"""What `ray start` takes where it is not told, by the names of its options."""


def be_this_host(node: Any, _is_head: object) -> None:
    """Give a node this host's address and folder, and ports at will; what a script says, stays.

    Args:
        node: Ray's `RayParams`.
    """
    # A node that joins would take the head's folder, where this host's `ray status` does not look.
    folder = f"{env.RAY_TMPDIR.get('/tmp')}/ray"  # noqa: S108 - Ray's own choice
    node.update_if_absent(node_ip_address=env.HOST_ADDRESS.get(), temp_dir=folder)
    for name, usual in USUAL_PORTS.items():
        if getattr(node, name) == usual:
            setattr(node, name, 0)  # any that is free
