"""A job as SageMaker and Vertex AI describe it to its scripts, and as a host reads that back.

Each host applies the rule for the training group by itself, only to facts that are the same on all
hosts, never to its own devices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import DEFAULT_GROUP, HostGroup

Distribution = Literal["torch_distributed", "pytorchddp", "smdistributed", "mpi"]
DataDistribution = Literal["FullyReplicated", "ShardedByS3Key"]
ChannelMode = Literal["File", "Pipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel, as a script sees it."""

    name: str
    mode: ChannelMode = "File"
    distribution: DataDistribution = "FullyReplicated"  # all objects on each host, or a share
    groups: tuple[str, ...] = ()  # whose hosts have it; empty: all
    content_type: str | None = None

    def is_for(self, group: str) -> bool:
        """Whether hosts of a group have the channel."""
        return not self.groups or group in self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """The resources of a host, as its scripts see them."""

    cpus: int  # cores
    gpus: int = 0
    interface: str = "eth0"  # by which the other hosts reach it
    torch: str = ""  # PyTorch's version there; "": unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """The facts of a job that are the same on all its hosts."""

    name: str
    groups: tuple[HostGroup, ...]
    entry_point: str  # the script, relative to the code folder
    distribution: Distribution | None = None  # None: the script runs once on each host
    distributed: tuple[str, ...] = ()  # the names of the groups that have ranks
    processes_per_host: int | None = None  # None: one per device
    channels: tuple[Channel, ...] = ()
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    submitted: str = ""  # the origin of the code, a URL or a folder; "": unknown
    region: str = ""  # the cloud's; "": none
    master_port: int = 0  # of the rendezvous on the first host; 0: the contract's usual one
    log_level: int = 20  # of Python's logging

    def __post_init__(self) -> None:
        if self.distribution is not None and self.distribution not in get_args(Distribution):
            known = ", ".join(get_args(Distribution))
            raise UsageError(f"distribution {self.distribution}: it is one of {known}.")
        names = [group.name for group in self.groups]
        users = [("The distribution", group) for group in self.distributed]
        users += [
            (f"Channel {each.name}", group) for each in self.channels for group in each.groups
        ]
        for user, group in users:
            if group not in names:
                raise UsageError(
                    f"{user} is for the instance group {group}, and there is none of that name: "
                    f"there are {', '.join(names)}."
                )

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts, in the order of their numbers."""
        hosts = [host for group in self.groups for host in group.hosts]
        return tuple(sorted(hosts, key=_by_number))

    @property
    def master(self) -> str:
        """The host of the rendezvous: the first one of the groups that have ranks."""
        with_ranks = [group for group in self.groups if group.name in self.distributed]
        return with_ranks[0].hosts[0] if with_ranks else self.hosts[0]

    def group_of(self, host: str) -> HostGroup:
        """Return the group of a host; raises UsageError where the job has no such host."""
        for group in self.groups:
            if host in group.hosts:
                return group
        raise UsageError(
            f"There is no host {host} in this job. Its hosts: {', '.join(self.hosts)}."
        )

    def channels_of(self, host: str) -> tuple[Channel, ...]:
        """Return the channels of a host."""
        group = self.group_of(host).name
        return tuple(channel for channel in self.channels if channel.is_for(group))


def _by_number(host: str) -> tuple[str, int, str]:
    """Return a sort key that puts algo-2 before algo-10."""
    stem, dash, number = host.rpartition("-")
    return (stem, int(number), host) if dash and number.isdecimal() else (host, 0, host)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTopology:
    """The hosts of a job, as its environment describes them."""

    hosts: tuple[str, ...]
    here: str  # this host
    head: str | None  # which the others join; None: unknown
    group: str  # of this host
    groups: tuple[HostGroup, ...] = ()  # all, the same on every host; empty: unknown
    training: str | None = None  # the training group's name; None: unknown
    primary: tuple[str, ...] = ()  # hosts that train by the platform's convention; empty: none


def parse_json_value(name: str, text: str | None) -> Any:
    """Return the parsed JSON of a variable or file, None where it is empty; raises UsageError."""
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON ({error}). Correct or unset it.") from None


def parse_names(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of a parsed variable, none for None; raises UsageError if it has no list."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise UsageError(f"{name} is not a list of names: {value!r}. Correct or unset it.")
    return tuple(value)


def training_group(
    groups: Sequence[HostGroup],
    *,
    flagged: str | None,
    head: str | None,
    platform: str | None,
    offload: str | None,
) -> HostGroup:
    """Return the training group; raises UsageError where it is ambiguous.

    The command line may name it (`flagged`), or a head that it contains; the platform may name
    it, too. The offload group does not train unless it is named.
    """
    others = [group for group in groups if group.name != offload]
    candidates = (
        [group for group in groups if group.name == flagged],
        [group for group in others if head in group.hosts],
        [group for group in groups if group.name == platform],
        groups,
        others,
        [group for group in others if group.has_devices],
        [group for group in others if group.name == DEFAULT_GROUP],
    )
    for found in candidates:  # the first unambiguous one
        if len(found) == 1:
            return found[0]
    counted = " ".join(f"--group {group.name}={len(group.hosts)}" for group in groups)
    raise UsageError(
        f"Which of the groups {describe_groups(groups)} trains? Not one alone has devices by its "
        f"type, nor is one called {DEFAULT_GROUP}. Name them on every host, the one that trains "
        f"first, such as {counted}."
    )


def describe_groups(groups: Sequence[HostGroup]) -> str:
    """Return a text of the groups with their hosts, for a message."""
    return ", ".join(f"{group.name} ({', '.join(group.hosts)})" for group in groups)
