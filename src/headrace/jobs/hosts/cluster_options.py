"""The cluster of a job, from its options, and hosts of emulated machine types."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.jobs.spec import AUTO_OFFLOAD, HostsOptions, JobSpec
from headrace.platforms.instance_groups import DEFAULT_GROUP, GroupSpec

# The cluster determines the number of hosts, their ranks, and the rendezvous.
_DECIDED_BY_CLUSTER = {
    "nnodes": "--nnodes",
    "node_rank": "--node-rank",
    "rdzv_backend": "--rdzv-backend",
    "rdzv_endpoint": "--rdzv-endpoint",
    "rdzv_id": "--rdzv-id",
    "standalone": "--standalone",
    "master_addr": "--master-addr",
    "master_port": "--master-port",
    "local_addr": "--local-addr",
    "log_dir": "--log-dir",  # the run folder
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The cluster on which a job runs."""

    address: str | None  # the Ray cluster's address; None: this machine, with emulated hosts
    is_ray: bool  # the hosts are a Ray cluster's; otherwise they are emulated without Ray
    training: GroupSpec
    others: tuple[GroupSpec, ...]
    offload: str | None  # the group whose hosts also make batches; None: none
    offload_if_it_helps: bool  # use that group only if it is predicted to help (`--offload auto`)
    hosts_s: float
    max_preemptions: int  # how often ranks are restarted after the loss of a host; -1: any number
    driver: bool  # the script uses Ray itself: it runs once, and Ray assigns all resources

    @property
    def ranks_hosts(self) -> int:
        """How many hosts run the script."""
        return 1 if self.driver else self.training.hosts


def cluster_options(
    spec: JobSpec, args: argparse.Namespace, parser: argparse.ArgumentParser
) -> ClusterOptions | None:
    """Return the cluster of a job; None: it has none.

    Raises UsageError (flags that exclude each other).
    """
    hosts = spec.hosts
    if hosts.engine == "local" and not hosts.groups:
        return None
    for name, flag in _DECIDED_BY_CLUSTER.items():
        if getattr(args, name) != parser.get_default(name):
            raise UsageError(
                f"{flag} and {_cluster_flag(hosts)}: the cluster decides that. Give the number of "
                "hosts by --group NAME=HOSTS."
            )
    is_ray = hosts.engine == "ray"
    address = (hosts.address or env.RAY_ADDRESS.get()) if is_ray else None
    training = hosts.groups[0] if hosts.groups else GroupSpec(name=DEFAULT_GROUP, hosts=1)
    offload = _chosen_offload(spec)
    _check_offload(offload, training, hosts.groups, address)
    _check_driver(hosts, args)
    return ClusterOptions(
        address=address,
        is_ray=is_ray,
        training=training,
        others=hosts.groups[1:],
        offload=offload,
        offload_if_it_helps=hosts.offload == AUTO_OFFLOAD,
        hosts_s=hosts.hosts_s,
        max_preemptions=hosts.max_preemptions,
        driver=hosts.driver,
    )


def _cluster_flag(hosts: HostsOptions) -> str:
    return "--engine ray" if hosts.engine == "ray" else f"--group {hosts.groups[0].flag()}"


def _chosen_offload(spec: JobSpec) -> str | None:
    """Return the offload group; `auto` stands for the only group that does not train."""
    others = spec.hosts.groups[1:]
    if spec.hosts.offload != AUTO_OFFLOAD:
        return spec.hosts.offload
    if len(others) != 1:
        names = ", ".join(group.name for group in others) or "none"
        raise UsageError(
            f"--offload auto is about the one group beside the one that trains; there are: {names}."
            " Name it by --group NAME=HOSTS, and several by --offload NAME."
        )
    if spec.recording.profile == "off":
        raise UsageError(
            "--offload auto goes by what is recorded, and --profile off records nothing. Leave one "
            "of them out, or name the group: --offload NAME."
        )
    return others[0].name


def _check_driver(hosts: HostsOptions, args: argparse.Namespace) -> None:
    if not hosts.driver:
        return
    if args.nproc_per_node != "1":
        raise UsageError(
            f"--nproc-per-node {args.nproc_per_node} and --driver: such a script runs once, and "
            "says itself how many workers Ray is to start."
        )
    if hosts.offload is not None:
        raise UsageError(
            f"--offload {hosts.offload} and --driver: Ray spreads the work of such a script over "
            "all hosts by itself. Leave one of them out."
        )


def _check_offload(
    name: str | None, training: GroupSpec, groups: tuple[GroupSpec, ...], address: str | None
) -> None:
    if name is None:
        return
    if name == training.name:
        raise UsageError(
            f"--offload {name}: that group trains, being the first --group. Name another one, "
            f"such as --group gpu=1 --group {name}=2 --offload {name}."
        )
    if address is None and name not in {group.name for group in groups}:
        raise UsageError(
            f"--offload {name}: hosts are emulated here, and none is of that group. Add --group "
            f"{name}=1:cpus=4, say, or name the cluster by --address."
        )


def emulated_ranks(spec: JobSpec, args: argparse.Namespace) -> int | None:
    """Return how many ranks a training host's machine type has; None: the type is not emulated."""
    hosts = spec.hosts
    if args.nproc_per_node != "auto" or not hosts.groups:
        return None
    if hosts.engine == "ray" and (hosts.address or env.RAY_ADDRESS.get()):
        return None  # real hosts: their devices count
    training = hosts.groups[0]
    if not training.instance_type or training.gpus is None:
        return None
    return training.gpus or 1


def print_emulated_types(groups: Sequence[GroupSpec], devices: int, ranks_here: int) -> None:
    """Print which hosts of a machine type are emulated on fewer devices than the type has.

    Args:
        groups: The groups of emulated hosts, the training group first.
    """
    cores = len(os.sched_getaffinity(0))
    for group in groups:
        if not group.gpus or not group.instance_type or group.gpus * group.hosts <= devices:
            continue
        ranks = f"; {ranks_here * group.hosts} ranks share the cores" if group is groups[0] else ""
        print_status(
            f"{group.name}: {group.hosts} x {group.instance_type} have {group.gpus} "
            f"devices each, this machine has {devices}: emulated on its {cores} cores{ranks}"
        )


def emulated_devices(group: GroupSpec, left: Sequence[str], count: int) -> list[str] | None:
    """Return the devices of this machine that an emulated host sees; None: all of them.

    A host of a named machine type sees as many as the type has, or none: ranks index them.

    Args:
        left: Devices that no other host has.
        count: How many devices the host has.
    """
    if not group.instance_type or group.gpus is None:
        return list(left[:count]) or None
    return list(left[:count]) if len(left) >= count else []
