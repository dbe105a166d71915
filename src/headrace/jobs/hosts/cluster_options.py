"""The options of a cluster: engine, groups, limits, and hosts of emulated machine types."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.core.units import parse_seconds
from headrace.platforms.instance_groups import DEFAULT_GROUP, GroupSpec, parse_groups

_ENGINES = ("local", "ray")
AUTO = "auto"
_HOSTS_S = 600.0
_CLUSTER_FLAGS = (
    "address", "offload", "hosts_timeout", "max_preemptions", "driver",
)  # fmt: skip
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
    """The cluster options of a command line.

    Attributes:
        address: The Ray cluster's address; None: this machine, with emulated hosts.
        is_ray: The hosts are a Ray cluster's; otherwise they are emulated without Ray.
        training: The group whose hosts run the ranks.
        others: Other groups.
        offload: The group whose hosts also make batches; None: none.
        offload_if_it_helps: Use that group only if it is predicted to help (`--offload auto`).
        hosts_s: Longest wait for the hosts, in seconds.
        max_preemptions: How often ranks are restarted after the loss of a host; -1: any number.
        driver: The script uses Ray itself: it runs once, and Ray assigns all resources.
    """

    address: str | None
    is_ray: bool
    training: GroupSpec
    others: tuple[GroupSpec, ...]
    offload: str | None
    offload_if_it_helps: bool
    hosts_s: float
    max_preemptions: int
    driver: bool

    @property
    def ranks_hosts(self) -> int:
        """How many hosts run the script."""
        return 1 if self.driver else self.training.hosts


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add these flags to a parser."""
    parser.add_argument("--engine", default="local", help="local, or ray: the hosts of a cluster.")
    parser.add_argument("--address", help="The Ray cluster: HOST:PORT, auto, ray://HOST:PORT.")
    parser.add_argument("--group", action="append", default=[], help="NAME=HOSTS[:cpus=N,gpus=N]")
    parser.add_argument("--offload", help="The group whose hosts make batches, or auto.")
    parser.add_argument("--hosts-timeout", "--hosts_timeout", help="Longest wait for the hosts.")
    parser.add_argument("--max-preemptions", "--max_preemptions", type=int)
    parser.add_argument("--driver", action="store_true", help="The script uses Ray itself.")


def cluster_options(
    args: argparse.Namespace, parser: argparse.ArgumentParser
) -> ClusterOptions | None:
    """Return the cluster options of parsed flags; None: there are none.

    Args:
        args: The parsed flags.
        parser: Their parser.

    Raises:
        UsageError: Flags that exclude each other, or invalid values.
    """
    if args.engine not in _ENGINES:
        raise UsageError(f"--engine {args.engine}: it is one of {', '.join(_ENGINES)}.")
    groups = parse_groups(args.group)
    if args.engine == "local":
        for flag in _CLUSTER_FLAGS:
            if getattr(args, flag):
                raise UsageError(
                    f"--{flag.replace('_', '-')} is about a cluster: add --engine ray."
                )
        if not groups:
            return None
    for name, flag in _DECIDED_BY_CLUSTER.items():
        if getattr(args, name) != parser.get_default(name):
            raise UsageError(
                f"{flag} and {_cluster_flag(args)}: the cluster decides that. How many hosts is "
                "told "
                "by --group NAME=HOSTS."
            )
    if args.max_preemptions is not None and args.max_preemptions < -1:
        raise UsageError(f"--max-preemptions {args.max_preemptions}: a number, or -1 for any.")
    is_ray = args.engine == "ray"
    address = (args.address or env.RAY_ADDRESS.get()) if is_ray else None
    training = groups[0] if groups else GroupSpec(name=DEFAULT_GROUP, hosts=1)
    offload = _chosen_offload(args, groups[1:])
    _check_offload(offload, training, groups, address)
    _check_driver(args)
    return ClusterOptions(
        address=address,
        is_ray=is_ray,
        training=training,
        others=groups[1:],
        offload=offload,
        offload_if_it_helps=args.offload == AUTO,
        hosts_s=parse_seconds(args.hosts_timeout) if args.hosts_timeout else _HOSTS_S,
        max_preemptions=-1 if args.max_preemptions is None else args.max_preemptions,
        driver=args.driver,
    )


def _cluster_flag(args: argparse.Namespace) -> str:
    return "--engine ray" if args.engine == "ray" else f"--group {args.group[0]}"


def _chosen_offload(args: argparse.Namespace, others: tuple[GroupSpec, ...]) -> str | None:
    """Return the offload group; `auto` stands for the only group that does not train."""
    name: str | None = args.offload
    if name != AUTO:
        return name
    if len(others) != 1:
        names = ", ".join(group.name for group in others) or "none"
        raise UsageError(
            f"--offload auto is about the one group beside the one that trains; there are: {names}."
            " Name it by --group NAME=HOSTS, and several by --offload NAME."
        )
    if args.profile == "off":
        raise UsageError(
            "--offload auto goes by what is recorded, and --profile off records nothing. Leave one "
            "of them out, or name the group: --offload NAME."
        )
    return others[0].name


def _check_driver(args: argparse.Namespace) -> None:
    if not args.driver:
        return
    if args.nproc_per_node != "1":
        raise UsageError(
            f"--nproc-per-node {args.nproc_per_node} and --driver: such a script runs once, and "
            "says itself how many workers Ray is to start."
        )
    if args.offload is not None:
        raise UsageError(
            f"--offload {args.offload} and --driver: Ray spreads the work of such a script over "
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


def emulated_ranks(args: argparse.Namespace) -> int | None:
    """Return how many ranks a training host's machine type has; None: the type is not emulated.

    Args:
        args: Parsed flags, torchrun's and ours.

    Raises:
        UsageError: An invalid group.
    """
    if args.nproc_per_node != "auto" or not args.group:
        return None
    if args.engine == "ray" and (args.address or env.RAY_ADDRESS.get()):
        return None  # real hosts: their devices count
    training = parse_groups(args.group)[0]
    if not training.instance_type or training.gpus is None:
        return None
    return training.gpus or 1


def print_emulated_types(groups: Sequence[GroupSpec], devices: int, ranks_here: int) -> None:
    """Print which hosts of a machine type are emulated on fewer devices than the type has.

    Args:
        groups: The groups of emulated hosts, the training group first.
        devices: This machine's device count.
        ranks_here: Ranks on each host of the first group.
    """
    cores = len(os.sched_getaffinity(0))
    for group in groups:
        if not group.gpus or not group.instance_type or group.gpus * group.hosts <= devices:
            continue
        ranks = f"; {ranks_here * group.hosts} ranks share the cores" if group is groups[0] else ""
        print_status(
            f"headrace: {group.name}: {group.hosts} x {group.instance_type} have {group.gpus} "
            f"devices each, this machine has {devices}: emulated on its {cores} cores{ranks}\n"
        )


def emulated_devices(group: GroupSpec, left: Sequence[str], count: int) -> list[str] | None:
    """Return the devices of this machine that an emulated host sees; None: all of them.

    A host of a named machine type sees as many as the type has, or none: ranks index them.

    Args:
        group: The host's group.
        left: Devices that no other host has.
        count: How many devices the host has.
    """
    if not group.instance_type or group.gpus is None:
        return list(left[:count]) or None
    return list(left[:count]) if len(left) >= count else []
