"""The hosts of a job as one of them knows them: from its platform, or from command-line flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import GroupSpec, HostGroup, check_group_name
from headrace.platforms.sagemaker.topology import sagemaker_topology
from headrace.platforms.topology import JobTopology, describe_groups, training_group
from headrace.platforms.vertex import vertex_topology

_FLAGS_HINT = (
    "Name the head and this host's group: headrace cluster join --head HOST --group NAME, and "
    "all hosts where you can: --hosts A,B,C."
)

_HOSTS_HINT = "Or name the hosts instead: --head HOST --group NAME --hosts A,B,C."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHostFlags:
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
class ClusterHosts:
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
    groups: tuple[GroupSpec, ...] = ()

    @property
    def is_head(self) -> bool:
        """Whether this host is the head."""
        return self.here == self.head


def find_cluster_hosts(
    variables: Mapping[str, str | None],
    resource_config: str | None,
    flags: ClusterHostFlags,
    find_here: Callable[[Sequence[str]], str | None],
) -> ClusterHosts:
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
            told = job_topology(variables, resource_config)
        except UsageError as error:
            raise UsageError(f"{error} {_HOSTS_HINT}") from error
    contract = (
        _from_flags(flags, find_here) if told is None else _from_topology(told, flags, find_here)
    )
    _check_offload(contract, flags)
    return contract


def _from_topology(
    told: JobTopology, flags: ClusterHostFlags, find_here: Callable[[Sequence[str]], str | None]
) -> ClusterHosts:
    if flags.hosts:
        here = told.here if told.here in flags.hosts else find_here(flags.hosts)
        told = replace(told, hosts=flags.hosts, here=here or told.here)
    groups = _groups_among(told.groups, told.hosts)
    training = _choose_training_group(groups, told, flags)
    among = training.hosts if training is not None else told.hosts
    contract = ClusterHosts(
        head=flags.head or (told.head if told.head in among else among[0]),
        here=told.here,
        group=flags.group or check_group_name(told.group, f"Group {told.group}"),
        hosts=told.hosts,
        # Where a flag says one host's group, others may say theirs.
        groups=() if flags.group else tuple(
            GroupSpec(name=group.name, hosts=len(group.hosts))
            for group in sorted(groups, key=lambda group: group is not training)
        ),
    )  # fmt: skip
    return _validated(contract)


def _groups_among(groups: Sequence[HostGroup], hosts: Sequence[str]) -> tuple[HostGroup, ...]:
    """Return the groups of some hosts; none where nobody tells that of one of them."""
    kept = [
        replace(group, hosts=tuple(host for host in group.hosts if host in hosts))
        for group in groups
    ]
    told = {host for group in kept for host in group.hosts}
    return tuple(group for group in kept if group.hosts) if told == set(hosts) else ()


def _choose_training_group(
    groups: Sequence[HostGroup], told: JobTopology, flags: ClusterHostFlags
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
                f"{describe_groups(groups)}."
            )
    return training_group(
        groups, flagged=flags.training, head=flags.head, told=told.training, offload=flags.offload
    )


def _check_offload(contract: ClusterHosts, flags: ClusterHostFlags) -> None:
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


def job_topology(
    variables: Mapping[str, str | None], resource_config: str | None
) -> JobTopology | None:
    """Return the hosts of a job as its environment tells them; None: it tells of no job.

    Args:
        variables: Those of `env.HOSTS_OF_THE_JOB`.
        resource_config: What is in SageMaker's resourceconfig.json; None: there is none.

    Raises:
        UsageError: Something is missing, or what is told contradicts itself.
    """
    told_by = [
        told
        for told in (sagemaker_topology(variables, resource_config), vertex_topology(variables))
        if told is not None
    ]
    if len(told_by) > 1:
        raise UsageError(
            f"{env.CLUSTER_SPEC.name} speaks of a job on Vertex AI, and SM_* variables or "
            "resourceconfig.json of one on SageMaker. Unset those that are not of this job."
        )
    return told_by[0] if told_by else None


def _from_flags(
    flags: ClusterHostFlags, find_here: Callable[[Sequence[str]], str | None]
) -> ClusterHosts:
    head = flags.head or (flags.hosts[0] if flags.hosts else None)
    if head is None:
        raise UsageError(
            "Neither SageMaker (SM_HOSTS, resourceconfig.json) nor Vertex AI (CLUSTER_SPEC) says "
            f"which hosts this job has. {_FLAGS_HINT}"
        )
    if flags.group is None:
        raise UsageError(f"--head {head}: which instance group is this host in? {_FLAGS_HINT}")
    here = find_here(flags.hosts or [head])
    return _validated(ClusterHosts(head=head, here=here, group=flags.group, hosts=flags.hosts))


def _validated(contract: ClusterHosts) -> ClusterHosts:
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
