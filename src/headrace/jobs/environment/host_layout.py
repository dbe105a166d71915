"""The layout of a job's hosts: groups, host names and addresses, the same on each host."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.platforms.instance_groups import HostGroup
from headrace.platforms.sagemaker.variables import MASTER_PORT as SAGEMAKERS_PORT
from headrace.platforms.script_contract import ContractName
from headrace.platforms.training_job import Distribution
from headrace.platforms.vertex import MASTER_PORT as VERTEXS_PORT

# What SageMaker calls the only group of a job.
_ONLY_GROUP = "homogeneousCluster"
_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayout:
    """The hosts of a job, as its scripts are told of them.

    Attributes:
        job: The job's name.
        groups: Its instance groups, their hosts named as scripts are told.
        addresses: Those of the hosts, by their names.
        distribution: What starts the ranks; None: the script runs once on each host.
        distributed: The names of the groups in which it does so.
        can_bind_mount: Whether each host may give its processes a view of files of their own.
        master_port: Where ranks meet that a script makes itself; 0: where the contract has them.
    """

    job: str
    groups: tuple[HostGroup, ...]
    addresses: Mapping[str, str]
    distribution: Distribution | None
    distributed: tuple[str, ...]
    can_bind_mount: bool
    master_port: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of all hosts, group by group."""
        return tuple(host for group in self.groups for host in group.hosts)

    def to_json(self) -> str:
        """Return a text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HostLayout:
        """Return the plan that `to_json` told."""
        told: dict[str, Any] = json.loads(text)
        groups = tuple(
            HostGroup(**{**group, "hosts": tuple(group["hosts"])}) for group in told["groups"]
        )
        return cls(**{**told, "groups": groups, "distributed": tuple(told["distributed"])})


def layout_hosts(
    job: str,
    groups: Mapping[str, tuple[str, list[str]]],
    *,
    distribution: Distribution | None,
    distributed: str | None,
    can_bind_mount: bool,
    master_port: int = 0,
) -> HostLayout:
    """Return the plan of hosts that are known by their addresses.

    Where scripts may see an /etc/hosts of the job's, hosts are called algo-1, algo-2, ... in the
    order of the groups; a name that nothing resolves would help no script, so elsewhere they are
    called by their addresses.

    Args:
        job: The job's name.
        groups: Type and addresses of the hosts of each group, by its name.
        distribution: What starts the ranks.
        distributed: The group in which it does so; None: none.
        can_bind_mount: Whether each host may give its processes a view of files of their own.
        master_port: As `HostLayout` has it.
    """
    addresses: dict[str, str] = {}
    named = []
    for group, (kind, hosts) in groups.items():
        names = [f"algo-{len(addresses) + number}" for number in range(1, len(hosts) + 1)]
        names = names if can_bind_mount else hosts
        addresses |= dict(zip(names, hosts, strict=True))
        named.append(HostGroup(name=group, hosts=tuple(names), instance_type=kind))
    return HostLayout(
        job=job,
        groups=tuple(named),
        addresses=addresses,
        distribution=distribution,
        distributed=(distributed,) if distribution is not None and distributed else (),
        can_bind_mount=can_bind_mount,
        master_port=master_port,
    )


def free_master_port(contracts: Sequence[ContractName]) -> int:
    """Return where ranks on this machine can meet: 0 for the contract's own port if that is free.

    Args:
        contracts: Those of the job.
    """
    usual = SAGEMAKERS_PORT if any(each.startswith("sage") for each in contracts) else VERTEXS_PORT
    with socket.socket() as probe:
        try:
            probe.bind(("", usual))  # on all addresses, as torch's store does
        except OSError:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])
    return 0


def layout_single_host(
    job: str, *, distribution: Distribution | None, devices: int, can_bind_mount: bool,
    master_port: int = 0,
) -> HostLayout:  # fmt: skip
    """Return the plan of a job on this host alone; see `layout_hosts`."""
    kind = "local_gpu" if devices else "local"
    return layout_hosts(
        job, {_ONLY_GROUP: (kind, [_ADDRESS])},
        distribution=distribution, distributed=_ONLY_GROUP, can_bind_mount=can_bind_mount,
        master_port=master_port,
    )  # fmt: skip
