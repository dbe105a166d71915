"""The topology of a job on SageMaker, read from SM_* variables and resourceconfig.json.

SDK 2's containers set all of the variables; SDK 3's set none about instance groups, but a master;
custom images have only the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import DEFAULT_GROUP, HostGroup
from headrace.platforms.topology import JobTopology, parse_json_value, parse_names

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
