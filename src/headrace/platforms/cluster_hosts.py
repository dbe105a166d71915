"""The hosts of a job as seen from one of them: from its platform, or from command-line flags."""

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
    """The flags about hosts, which take precedence over the environment."""

    head: str | None = None
    group: str | None = None  # of this host
    hosts: tuple[str, ...] = ()  # all hosts; empty: not given
    training: str | None = None  # the training group: the first group with a number of hosts
    offload: str | None = None  # the offload group


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHosts:
    """The hosts of a job, as seen from one of them."""

    head: str  # which the other hosts join
    here: str | None  # this host; None: it has no name among the known hosts
    group: str  # of this host
    hosts: tuple[str, ...]  # empty: unknown
    groups: tuple[GroupSpec, ...] = ()  # the training group first; empty: hosts report theirs

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
    """Return the hosts of a job by its environment and the command line.

    `find_here` returns which of some hosts is this one, if any, where no variable says; for the
    rest and the errors see `job_topology`.
    """
    if flags.group is not None:
        check_group_name(flags.group, f"--group {flags.group}")
    job = None
    if not (flags.hosts and flags.group):  # else the flags are complete
        try:
            job = job_topology(variables, resource_config)
        except UsageError as error:
            raise UsageError(f"{error} {_HOSTS_HINT}") from error
    hosts = _from_flags(flags, find_here) if job is None else _from_topology(job, flags, find_here)
    _check_offload(hosts, flags)
    return hosts


def _from_topology(
    job: JobTopology, flags: ClusterHostFlags, find_here: Callable[[Sequence[str]], str | None]
) -> ClusterHosts:
    if flags.hosts:
        here = job.here if job.here in flags.hosts else find_here(flags.hosts)
        job = replace(job, hosts=flags.hosts, here=here or job.here)
    groups = _groups_of_hosts(job.groups, job.hosts)
    training = _choose_training_group(groups, job, flags)
    candidates = training.hosts if training is not None else job.hosts
    training_first = sorted(groups, key=lambda group: group is not training)
    sizes = [GroupSpec(name=group.name, hosts=len(group.hosts)) for group in training_first]
    found = ClusterHosts(
        head=flags.head or (job.head if job.head in candidates else candidates[0]),
        here=job.here,
        group=flags.group or check_group_name(job.group, f"Group {job.group}"),
        hosts=job.hosts,
        # If a flag gives one host's group, other hosts may have such flags, too.
        groups=() if flags.group else tuple(sizes),
    )
    return _validated(found)


def _groups_of_hosts(groups: Sequence[HostGroup], hosts: Sequence[str]) -> tuple[HostGroup, ...]:
    """Return the groups of some hosts; empty where the group of one of them is unknown."""
    present = [
        replace(group, hosts=tuple(host for host in group.hosts if host in hosts))
        for group in groups
    ]
    known = {host for group in present for host in group.hosts}
    return tuple(group for group in present if group.hosts) if known == set(hosts) else ()


def _choose_training_group(
    groups: Sequence[HostGroup], job: JobTopology, flags: ClusterHostFlags
) -> HostGroup | None:
    """Return the training group; None: not all groups are known."""
    if not groups:
        return None
    names = {group.name for group in groups}
    for name, flag in (
        (flags.training, f"--group {flags.training}=HOSTS"),
        (flags.offload, f"--offload {flags.offload}"),
    ):
        if name is not None and name not in names and not flags.group:
            raise UsageError(
                f"{flag}: no host of this job is in that group. Name one of those that there are: "
                f"{describe_groups(groups)}."
            )
    return training_group(
        groups,
        flagged=flags.training,
        head=flags.head,
        platform=job.training,
        offload=flags.offload,
    )


def _check_offload(contract: ClusterHosts, flags: ClusterHostFlags) -> None:
    """Raise UsageError where the offload group is known to be the training group.

    Without flags and known groups, the head's group trains, which only the head knows.
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
    """Return the topology of a job by its environment; None: there is no job.

    `variables` are the values of `env.HOST_LIST_VARIABLES`, `resource_config` is the text of
    SageMaker's resourceconfig.json. UsageError: information is missing or contradictory.
    """
    sagemaker, vertex = sagemaker_topology(variables, resource_config), vertex_topology(variables)
    if sagemaker and vertex:
        raise UsageError(
            f"{env.CLUSTER_SPEC.name} speaks of a job on Vertex AI, and SM_* variables or "
            "resourceconfig.json of one on SageMaker. Unset those that are not of this job."
        )
    return sagemaker or vertex


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
    repeated = [host for host in hosts if hosts.count(host) > 1]
    if repeated:
        raise UsageError(f"{repeated[0]} is twice among the hosts {listed}: name each host once.")
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
