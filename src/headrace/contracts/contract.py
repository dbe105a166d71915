"""What a host of a job that others started knows: which hosts there are, and which one it is.

SageMaker and Vertex AI tell it in the environment; by hand, flags do. Nothing is looked up here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.contracts.groups import Group, check_group_name
from headrace.contracts.host_group import HostGroup
from headrace.contracts.told_by_sagemaker import tells_sagemaker
from headrace.contracts.told_by_vertex import tells_vertex
from headrace.contracts.told_hosts import ToldHosts
from headrace.contracts.training_group import told_groups, training_group
from headrace.core import env
from headrace.core.errors import UsageError

_BY_HAND = (
    "Name the head and this host's group: headrace cluster join --head HOST --group NAME, and "
    "all hosts where you can: --hosts A,B,C."
)

_INSTEAD = "Or name the hosts instead: --head HOST --group NAME --hosts A,B,C."


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractFlags:
    """What a command line says about the hosts; it comes before what the environment says.

    Attributes:
        head: The host that is the head.
        group: This host's instance group.
        hosts: All hosts; empty: not told.
        training: The group that trains, being the first of those whose hosts are counted.
        offload: The group that makes batches.
    """

    head: str | None = None
    group: str | None = None
    hosts: tuple[str, ...] = ()
    training: str | None = None
    offload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The hosts of a job, as one of them sees it.

    Attributes:
        head: The host that the others join.
        here: This host; None: it has no name among hosts that are told.
        group: This host's instance group.
        hosts: All hosts; empty: nobody told which there are.
        groups: All groups, the one that trains first; empty: each host says its own as it comes.
    """

    head: str
    here: str | None
    group: str
    hosts: tuple[str, ...]
    groups: tuple[Group, ...] = ()

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
        try:
            told = told_hosts(variables, resource_config)
        except UsageError as error:
            raise UsageError(f"{error} {_INSTEAD}") from error
    contract = _by_hand(flags, find_here) if told is None else _of_told(told, flags, find_here)
    _check_offload(contract, flags)
    return contract


def _of_told(
    told: ToldHosts, flags: ContractFlags, find_here: Callable[[Sequence[str]], str | None]
) -> Contract:
    if flags.hosts:
        here = told.here if told.here in flags.hosts else find_here(flags.hosts)
        told = replace(told, hosts=flags.hosts, here=here or told.here)
    groups = _groups_among(told.groups, told.hosts)
    training = _training(groups, told, flags)
    among = training.hosts if training is not None else told.hosts
    contract = Contract(
        head=flags.head or (told.head if told.head in among else among[0]),
        here=told.here,
        group=flags.group or check_group_name(told.group, f"Group {told.group}"),
        hosts=told.hosts,
        # Where a flag says one host's group, others may say theirs.
        groups=() if flags.group else tuple(
            Group(name=group.name, hosts=len(group.hosts))
            for group in sorted(groups, key=lambda group: group is not training)
        ),
    )  # fmt: skip
    return _checked(contract)


def _groups_among(groups: Sequence[HostGroup], hosts: Sequence[str]) -> tuple[HostGroup, ...]:
    """Return the groups of some hosts; none where nobody tells that of one of them."""
    kept = [
        replace(group, hosts=tuple(host for host in group.hosts if host in hosts))
        for group in groups
    ]
    told = {host for group in kept for host in group.hosts}
    return tuple(group for group in kept if group.hosts) if told == set(hosts) else ()


def _training(
    groups: Sequence[HostGroup], told: ToldHosts, flags: ContractFlags
) -> HostGroup | None:
    """Return the group that trains; None: nobody tells all groups."""
    if not groups:
        return None
    names = {group.name for group in groups}
    for name, said in (
        (flags.training, f"--group {flags.training}=HOSTS"),
        (flags.offload, f"--offload {flags.offload}"),
    ):
        if name is not None and name not in names and not flags.group:
            raise UsageError(
                f"{said}: no host of this job is in that group. Name one of those that there are: "
                f"{told_groups(groups)}."
            )
    return training_group(
        groups, flagged=flags.training, head=flags.head, told=told.training, offload=flags.offload
    )


def _check_offload(contract: Contract, flags: ContractFlags) -> None:
    """Raise UsageError where the group that is to make batches is known to be the one that trains.

    Without flags and groups that are told, the group of the head trains, which the head knows.
    """
    of_head = contract.group if contract.is_head else None
    training = contract.groups[0].name if contract.groups else flags.training or of_head
    if flags.offload is not None and flags.offload == training:
        raise UsageError(
            f"--offload {training}: that group trains. Name another one, or say which one trains: "
            "--group NAME=HOSTS, on every host."
        )


def told_hosts(
    variables: Mapping[str, str | None], resource_config: str | None
) -> ToldHosts | None:
    """Return the hosts of a job as its environment tells them; None: it tells of no job.

    Args:
        variables: Those of `env.HOSTS_OF_THE_JOB`.
        resource_config: What is in SageMaker's resourceconfig.json; None: there is none.

    Raises:
        UsageError: Something is missing, or what is told contradicts itself.
    """
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
