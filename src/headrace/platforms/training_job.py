"""The training job that SageMaker and Vertex AI describe to its scripts: groups and channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import HostGroup

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
