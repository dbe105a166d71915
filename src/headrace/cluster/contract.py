"""What a host of a job that others started knows: which hosts there are, and which one it is.

SageMaker and Vertex AI tell it in the environment; by hand, flags do. Nothing is looked up here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.cluster.groups import check_group_name
from headrace.cluster.sagemaker import tells_sagemaker
from headrace.cluster.told_hosts import ToldHosts
from headrace.cluster.vertex import tells_vertex
from headrace.core import env
from headrace.core.errors import UsageError

_BY_HAND = (
    "Name the head and this host's group: headrace cluster join --head HOST --group NAME, and "
    "all hosts where you can: --hosts A,B,C."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractFlags:
    """What a command line says about the hosts; it comes before what the environment says.

    Attributes:
        head: The host that is the head.
        group: This host's instance group.
        hosts: All hosts; empty: not told.
    """

    head: str | None = None
    group: str | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The hosts of a job, as one of them sees it.

    Attributes:
        head: The host that the others join.
        here: This host; None: it has no name among hosts that are told.
        group: This host's instance group.
        hosts: All hosts; empty: nobody told which there are.
    """

    head: str
    here: str | None
    group: str
    hosts: tuple[str, ...]

    @property
    def is_head(self) -> bool:
        """Whether this host is the head."""
        return self.here == self.head


def contract_of(
    variables: Mapping[str, str | None],
    resource_config: str | None,
    flags: ContractFlags,
    find_here: Callable[[Sequence[str]], str | None],
) -> Contract:
    """Return what a host's environment and its command line say together.

    Args:
        variables: Those of `env.HOSTS_OF_THE_JOB`.
        resource_config: What is in SageMaker's resourceconfig.json; None: there is none.
        flags: The command line's.
        find_here: Asked, where no variable says so, which of some hosts is this one, if any.

    Raises:
        UsageError: What is needed is told nowhere, or what is told contradicts itself.
    """
    if flags.group is not None:
        check_group_name(flags.group, f"--group {flags.group}")
    told = None
    if not (flags.hosts and flags.group):  # else flags say all there is to say
        told = _told(variables, resource_config)
    if told is None:
        return _by_hand(flags, find_here)
    if flags.hosts:
        here = told.here if told.here in flags.hosts else find_here(flags.hosts)
        head = told.head if told.head in flags.hosts else flags.hosts[0]
        told = replace(told, hosts=flags.hosts, here=here or told.here, head=head)
    contract = Contract(
        head=flags.head or told.head,
        here=told.here,
        group=flags.group or check_group_name(told.group, f"Group {told.group}"),
        hosts=told.hosts,
    )
    return _checked(contract)


def _told(variables: Mapping[str, str | None], resource_config: str | None) -> ToldHosts | None:
    told_by = [
        told
        for told in (tells_sagemaker(variables, resource_config), tells_vertex(variables))
        if told is not None
    ]
    if len(told_by) > 1:
        raise UsageError(
            f"{env.CLUSTER_SPEC.name} speaks of a job on Vertex AI, and SM_* variables or "
            "resourceconfig.json of one on SageMaker. Unset those that are not of this job."
        )
    return told_by[0] if told_by else None


def _by_hand(flags: ContractFlags, find_here: Callable[[Sequence[str]], str | None]) -> Contract:
    head = flags.head or (flags.hosts[0] if flags.hosts else None)
    if head is None:
        raise UsageError(
            "Neither SageMaker (SM_HOSTS, resourceconfig.json) nor Vertex AI (CLUSTER_SPEC) says "
            f"which hosts this job has. {_BY_HAND}"
        )
    if flags.group is None:
        raise UsageError(f"--head {head}: which instance group is this host in? {_BY_HAND}")
    here = find_here(flags.hosts or [head])
    return _checked(Contract(head=head, here=here, group=flags.group, hosts=flags.hosts))


def _checked(contract: Contract) -> Contract:
    hosts = contract.hosts
    if not hosts:
        return contract
    listed = ", ".join(hosts)
    twice = [host for host in hosts if hosts.count(host) > 1]
    if twice:
        raise UsageError(f"{twice[0]} is twice among the hosts {listed}: name each host once.")
    if contract.head not in hosts:
        raise UsageError(
            f"The head {contract.head} is not among the hosts {listed}. Name one of them: "
            "--head HOST, or name all hosts: --hosts A,B,C."
        )
    if contract.here not in hosts:
        raise UsageError(
            f"This host{f', {contract.here},' if contract.here else ''} is not among the hosts "
            f"{listed}. Each is a name or an address that leads to it from every host, this one "
            "too: --hosts A,B,C."
        )
    return contract
