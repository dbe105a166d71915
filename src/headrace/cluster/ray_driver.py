"""The connection of this process to a Ray cluster as a driver, and the cluster's hosts."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.platforms.instance_groups import GROUP_LABEL, GroupSpec


def import_ray() -> ModuleType:
    """Return the `ray` module; raises UsageError, with the remedy, where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"A cluster needs Ray, which cannot be imported ({error}). "
            "Run `pip install 'headrace[ray]'`, on every host."
        ) from error
    return ray


_CONNECT_S = 10.0
_POLL_S = 0.5
_STATUS_INTERVAL_S = 10.0
_EXCLUDED_PATHS = (".git", ".venv", "__pycache__", "runs")
"""What is not copied with the job's folder, besides what its .gitignore names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHost:
    """A living host of the cluster, with the cores and devices that Ray schedules."""

    node_id: str
    name: str  # its node name, or its address
    address: str  # by which other hosts reach it
    group: str | None  # None without a label
    cpus: int
    gpus: int


@contextmanager
def ray_connection(address: str, *, folder: str | None = None) -> Iterator[ModuleType]:
    """Connect this process to a cluster for the block; yields the `ray` module.

    The address is HOST:PORT, `auto` for the cluster that this host belongs to, or ray://HOST:PORT.
    Actors on other hosts work in a copy of `folder`. Raises UsageError where Ray is not installed,
    LaunchError where there is no cluster, or it rejects this process.
    """
    ray = import_ray()
    _check_reachable(address)
    job_folder = {"working_dir": folder, "excludes": list(_EXCLUDED_PATHS)} if folder else {}
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level="ERROR", runtime_env=job_folder
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(address, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise LaunchError where nothing accepts a connection: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # for Ray to resolve, such as "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"There is no Ray cluster at {address} that can be used: {_first_line(error)}. Start one "
        "(docs/clusters.md), leave out --address to try the job on this machine, or set "
        "RAY_AUTH_TOKEN_PATH to the cluster's token. Where the folder that goes along is meant, "
        "name what stays in .gitignore."
    )


def living_hosts(ray: ModuleType) -> list[RayHost]:
    """Return the hosts that are alive in the cluster now."""
    return [
        RayHost(
            node_id=node["NodeID"],
            name=node.get("NodeName") or node["NodeManagerAddress"],
            address=node["NodeManagerAddress"],
            group=node.get("Labels", {}).get(GROUP_LABEL),
            cpus=int(node["Resources"].get("CPU", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def wait_for_hosts(
    ray: ModuleType,
    groups: Sequence[GroupSpec],
    *,
    longest_s: float,
    is_over: Callable[[], bool],
    without: AbstractSet[str] = frozenset(),
) -> list[RayHost]:
    """Wait until every group has its hosts, print what is missing, and return the cluster's hosts.

    LaunchError is raised after `longest_s`. Once `is_over`, the hosts of that moment are returned.
    `without` has the node ids of hosts that are lost, though the cluster may not know it yet.
    """
    deadline_s = time.monotonic() + longest_s
    next_status_s = time.monotonic() + _STATUS_INTERVAL_S
    while True:
        hosts = [host for host in living_hosts(ray) if host.node_id not in without]
        missing = _describe_missing(groups, hosts)
        if not missing or is_over():
            return hosts
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise LaunchError(
                f"The cluster has too few hosts after {longest_s:.0f} s: {missing}. A host joins a "
                f"group by `ray start --labels {GROUP_LABEL}=GROUP`; "
                f"what is there: {_describe_hosts(hosts)}."
            )
        if now_s > next_status_s:
            print_status(f"headrace: waiting for hosts: {missing}\n")
            next_status_s += _STATUS_INTERVAL_S
        time.sleep(_POLL_S)


def _describe_missing(groups: Sequence[GroupSpec], hosts: Sequence[RayHost]) -> str:
    found = {group.name: sum(host.group == group.name for host in hosts) for group in groups}
    return ", ".join(
        f"group {group.name} has {found[group.name]} of {group.hosts}"
        for group in groups
        if found[group.name] < group.hosts
    )


def _describe_hosts(hosts: Sequence[RayHost]) -> str:
    return ", ".join(f"{host.name} ({host.group or 'no group'})" for host in hosts) or "none"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
