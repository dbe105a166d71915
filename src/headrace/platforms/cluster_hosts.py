"""The hosts of a job as seen from one of them: from its platform, or from command-line flags.

On SageMaker the topology is read from SM_* variables and resourceconfig.json. SDK 2's containers
set all of the variables; SDK 3's set none about instance groups, but a master; custom images have
only the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import DEFAULT_GROUP, GroupSpec, HostGroup, check_group_name
from headrace.platforms.training_job import (
    JobTopology,
    describe_groups,
    parse_json_value,
    parse_names,
    training_group,
)
from headrace.platforms.vertex import vertex_topology

_RESOURCE_CONFIG = "resourceconfig.json"


def sagemaker_topology(
    variables: Mapping[str, str | None], resource_config: str | None
) -> JobTopology | None:
    """Return the topology of a job on SageMaker, see `job_topology`; None: this is no such job."""
    config = parse_json_value(_RESOURCE_CONFIG, resource_config)
    variable_config = parse_json_value(
        env.SM_RESOURCE_CONFIG.name, variables.get(env.SM_RESOURCE_CONFIG.name)
    )
    config = variable_config if variable_config is not None else config
    if config is not None and not isinstance(config, dict):
        raise UsageError(f"{_RESOURCE_CONFIG} is not an object: {config!r}. Correct it.")
    sources = _TopologySources(variables, config or {})
    has_variables = any(name.startswith("SM_") and value for name, value in variables.items())
    if not has_variables and config is None:
        return None
    hosts = sources.hosts()
    here = sources.here(hosts)
    groups = sources.groups(hosts)
    training = sources.training(groups)
    return JobTopology(
        hosts=hosts,
        here=here,
        head=sources.head(hosts, training),
        group=sources.group(here, groups),
        groups=groups,
        training=training.name if training is not None else None,
    )


class _TopologySources:
    """The sources of the topology, compared for each question."""

    def __init__(self, variables: Mapping[str, str | None], config: Mapping[str, Any]) -> None:
        self._variables = variables
        self._config = config

    def hosts(self) -> tuple[str, ...]:
        name, given = env.SM_HOSTS.name, self._names(env.SM_HOSTS)
        listed = parse_names(f"{_RESOURCE_CONFIG}, hosts", self._config.get("hosts"))
        if given and listed and set(given) != set(listed):
            raise _contradiction(
                f"{name} lists {_joined_names(given)}",
                f"{_RESOURCE_CONFIG} {_joined_names(listed)}",
            )
        hosts = given or listed
        if not hosts:
            raise _missing("which hosts there are", env.SM_HOSTS, "hosts")
        count = _number(env.SM_HOST_COUNT, self._get(env.SM_HOST_COUNT))
        if count is not None and count != len(hosts):
            raise _contradiction(
                f"{env.SM_HOST_COUNT.name} is {count}",
                f"there are {len(hosts)}: {_joined_names(hosts)}",
            )
        return hosts

    def here(self, hosts: Sequence[str]) -> str:
        rank = _number(env.SM_CURRENT_HOST_RANK, self._get(env.SM_CURRENT_HOST_RANK))
        if rank is not None and not 0 <= rank < len(hosts):
            raise _contradiction(
                f"{env.SM_CURRENT_HOST_RANK.name} is {rank}", f"there are {len(hosts)} hosts"
            )
        named = {
            env.SM_CURRENT_HOST.name: self._get(env.SM_CURRENT_HOST),
            f"{_RESOURCE_CONFIG}, current_host": self._config.get("current_host"),
            env.SM_CURRENT_HOST_RANK.name: None if rank is None else hosts[rank],
        }
        here = _agreed_value("this host is", named)
        if here is None:
            raise _missing("which of them this host is", env.SM_CURRENT_HOST, "current_host")
        if here not in hosts:
            raise _contradiction(f"this host is {here}", f"the hosts are {_joined_names(hosts)}")
        return here

    def groups(self, hosts: Sequence[str]) -> tuple[HostGroup, ...]:
        """Return all groups; empty: unknown."""
        name = env.SM_INSTANCE_GROUPS_DICT.name
        given = parse_json_value(name, self._get(env.SM_INSTANCE_GROUPS_DICT))
        source = name if given is not None else f"{_RESOURCE_CONFIG}, instance_groups"
        listed = self._config.get("instance_groups") if given is None else given
        if isinstance(listed, dict):
            given_groups = [(group, of) for group, of in listed.items() if isinstance(of, dict)]
            listed = [{"instance_group_name": group, **of} for group, of in given_groups]
        groups = []
        for one in listed or []:
            if not isinstance(one, dict) or not isinstance(one.get("instance_group_name"), str):
                raise UsageError(f"{source}: {one!r} is no group with a name. Correct it.")
            name = one["instance_group_name"]
            of_group = parse_names(f"{source}, {name}", one.get("hosts"))
            kind = str(one.get("instance_type") or "")
            groups.append(HostGroup(name=name, hosts=of_group, instance_type=kind))
        unknown = [host for group in groups for host in group.hosts if host not in hosts]
        if unknown:
            raise _contradiction(
                f"{source} has {_joined_names(unknown)}", f"the hosts: {_joined_names(hosts)}"
            )
        return tuple(groups)

    def group(self, here: str, groups: Sequence[HostGroup]) -> str:
        own_groups = [group.name for group in groups if here in group.hosts]
        named = {
            env.SM_CURRENT_INSTANCE_GROUP.name: self._get(env.SM_CURRENT_INSTANCE_GROUP),
            f"{_RESOURCE_CONFIG}, current_group_name": self._config.get("current_group_name")
            or self._config.get("current_instance_group"),
            "the list of groups": own_groups[0] if own_groups else None,
        }
        return _agreed_value(f"{here} is in the group", named) or DEFAULT_GROUP

    def training(self, groups: Sequence[HostGroup]) -> HostGroup | None:
        """Return the training group; None: none is named, as by an estimator without one."""
        name = env.SM_DISTRIBUTION_INSTANCE_GROUPS.name
        named = self._names(env.SM_DISTRIBUTION_INSTANCE_GROUPS)
        if not named:
            return None
        for group in groups:
            if group.name == named[0] and group.hosts:
                return group
        raise _missing(
            f"which hosts the group {named[0]} of {name} has",
            env.SM_INSTANCE_GROUPS_DICT,
            "instance_groups",
        )

    def head(self, hosts: Sequence[str], training: HostGroup | None) -> str | None:
        """Return the head; None: unknown."""
        distribution = env.SM_DISTRIBUTION_INSTANCE_GROUPS.name
        named = {
            f"the first host of {distribution}": training.hosts[0] if training else None,
            env.SM_MASTER_ADDR.name: self._get(env.SM_MASTER_ADDR),
        }
        head = _agreed_value("the head is", named)
        if head is not None and head not in hosts:
            raise _contradiction(f"the head is {head}", f"the hosts are {_joined_names(hosts)}")
        return head

    def _get(self, variable: env.Variable) -> str | None:
        return self._variables.get(variable.name)

    def _names(self, variable: env.Variable) -> tuple[str, ...]:
        return parse_names(variable.name, parse_json_value(variable.name, self._get(variable)))


def _number(variable: env.Variable, text: str | None) -> int | None:
    """Return a variable's text as an integer; raises UsageError where it is none."""
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(
            f"{variable.name}={text!r} is not a whole number ({variable.meaning}). Unset or "
            "correct it."
        )
    return int(text)


def _agreed_value(what: str, named: Mapping[str, str | None]) -> str | None:
    """Return the value on which all sources that have one agree; None: no source has one."""
    given = [(source, value) for source, value in named.items() if value]
    for source, value in given[1:]:
        if value != given[0][1]:
            raise _contradiction(f"{what} {given[0][1]} by {given[0][0]}", f"{value} by {source}")
    return given[0][1] if given else None


def _joined_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _contradiction(one: str, other: str) -> UsageError:
    return UsageError(
        f"SageMaker's environment contradicts itself: {one}, but {other}. Correct it."
    )


def _missing(what: str, variable: env.Variable, key: str) -> UsageError:
    return UsageError(
        f"SageMaker's environment does not say {what}: neither {variable.name} nor {key} in "
        f"{_RESOURCE_CONFIG} is there. Set the variable."
    )


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
