"""Hosts of a named type, such as ml.p3.16xlarge, that are emulated on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from headrace.contracts.groups import Group, parse_groups
from headrace.core import env
from headrace.launch.told import tell


def emulated_ranks(args: argparse.Namespace) -> int | None:
    """Return how many ranks the type of the hosts that train means; None: nothing is emulated.

    Args:
        args: Parsed flags of torchrun's and ours.

    Raises:
        UsageError: A group that cannot be.
    """
    if args.nproc_per_node != "auto" or not args.group:
        return None
    if args.engine == "ray" and (args.address or env.RAY_ADDRESS.get()):
        return None  # real hosts: their devices count
    training = parse_groups(args.group)[0]
    if not training.instance_type or training.gpus is None:
        return None
    return training.gpus or 1


def tell_of_emulated(groups: Sequence[Group], devices: int, ranks_here: int) -> None:
    """Say once what hosts of a named type have, and that it is emulated.

    Args:
        groups: Those whose hosts are emulated, the one that trains first.
        devices: This machine's.
        ranks_here: Ranks on each host of the first group.
    """
    cores = len(os.sched_getaffinity(0))
    for group in groups:
        if not group.gpus or not group.instance_type or group.gpus * group.hosts <= devices:
            continue
        ranks = f"; {ranks_here * group.hosts} ranks share the cores" if group is groups[0] else ""
        tell(
            f"headrace: {group.name}: {group.hosts} x {group.instance_type} have {group.gpus} "
            f"devices each, this machine has {devices}: emulated on its {cores} cores{ranks}\n"
        )


def devices_of(group: Group, left: Sequence[str], count: int) -> list[str] | None:
    """Return the devices of this machine that an emulated host sees; None: whatever there is.

    A host of a named type sees as many as the type has, or none: ranks number them.

    Args:
        group: The host's.
        left: Devices that no other host has.
        count: How many it has.
    """
    if not group.instance_type or group.gpus is None:
        return list(left[:count]) or None
    return list(left[:count]) if len(left) >= count else []
