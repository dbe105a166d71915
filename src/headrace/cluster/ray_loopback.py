"""The hook by which Ray nodes on emulated hosts listen on the loopback address alone.

`ray start` calls what the variable RAY_START_HOOK names, with the parameters of the node.
"""

from __future__ import annotations

import sys
from typing import Any

from headrace.core import env

LOOPBACK = "127.0.0.1"
LOOPBACK_HOOK = f"{__name__}.keep_on_loopback"


def loopback_variables() -> dict[str, str | None]:
    """Return the variables of processes that connect to nodes with the hook, or become such ones.

    Ray reads them as it is imported.
    """
    return {env.RAY_CLUSTERS.name: "0"}


def reread_loopback_variables() -> None:
    """Have Ray in this process go by the present variables, if it was imported before."""
    constants = sys.modules.get("ray._private.ray_constants")
    if constants is not None:
        constants.ENABLE_RAY_CLUSTER = env.RAY_CLUSTERS.get("1") != "0"  # type: ignore[attr-defined]


def keep_on_loopback(node: Any, _is_head: object) -> None:
    """Set the loopback address in Ray's `RayParams`, and have Ray keep it.

    Ray's servers listen where the node's address is, if that is the loopback address (Ray 2.60);
    but `ray start` replaces it by one of the network's, unless it is told that this system has no
    clusters, as Windows and macOS have none, and then it refuses nodes that join one.
    """
    from ray._private import ray_constants, services

    env.change({env.RAY_START_HOOK.name: None})  # what runs on the node may start another Ray
    node.node_ip_address = LOOPBACK
    ray_constants.ENABLE_RAY_CLUSTER = True
    services.resolve_ip_for_localhost = _unchanged


def _unchanged(host: str) -> str:
    return host
