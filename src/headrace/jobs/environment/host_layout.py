"""The layout of a job's hosts: groups, host names and addresses, the same on each host."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.platforms.instance_groups import ONLY_GROUP, HostGroup
from headrace.platforms.sagemaker.variables import MASTER_PORT as SAGEMAKERS_PORT
from headrace.platforms.script_contract import ContractName
from headrace.platforms.training_job import Distribution
from headrace.platforms.vertex import MASTER_PORT as VERTEXS_PORT

_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayout:
    """The hosts of a job, with the names that its scripts see."""

    job: str
    groups: tuple[HostGroup, ...]
    addresses: Mapping[str, str]  # by host name
    distribution: Distribution | None  # how ranks are started; None: the script runs once a host
    distributed: tuple[str, ...]  # the names of the groups that have ranks
    can_bind_mount: bool  # processes of each host may have a mount namespace
    master_port: int = 0  # for the rendezvous of a script's own ranks; 0: the contract's

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of all hosts, group by group."""
        return tuple(host for group in self.groups for host in group.hosts)

    def to_json(self) -> str:
        """Return a text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HostLayout:
        """Return the layout of a `to_json` text."""
        fields: dict[str, Any] = json.loads(text)
        groups = tuple(
            HostGroup(**{**group, "hosts": tuple(group["hosts"])}) for group in fields["groups"]
        )
        return cls(**{**fields, "groups": groups, "distributed": tuple(fields["distributed"])})


def layout_hosts(
    job: str,
    groups: Mapping[str, tuple[str, list[str]]],
    *,
    distribution: Distribution | None,
    distributed: str | None,
    can_bind_mount: bool,
    master_port: int = 0,
) -> HostLayout:
    """Return the layout of hosts that are known by their addresses.

    Where scripts can get an /etc/hosts of the job's, hosts are called algo-1, algo-2, ... in the
    order of the groups. Elsewhere nothing would resolve such names, and they are called by address.
    `groups` has the type and the addresses of the hosts of each group; `distributed` is the group
    that has ranks, None: none.
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
    """Return a free rendezvous port on this machine; 0 where the contracts' own port is free."""
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
    """Return the layout of a job on this host alone; see `layout_hosts`."""
    kind = "local_gpu" if devices else "local"
    return layout_hosts(
        job, {ONLY_GROUP: (kind, [_ADDRESS])},
        distribution=distribution, distributed=ONLY_GROUP, can_bind_mount=can_bind_mount,
        master_port=master_port,
    )  # fmt: skip
