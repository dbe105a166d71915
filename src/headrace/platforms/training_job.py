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
    """A channel, as a script sees it.

    Attributes:
        name: The channel's name.
        mode: The input mode.
        distribution: Whether each host has all of its objects, or a share of them.
        groups: The instance groups whose hosts have it; empty: all.
        content_type: The content type of its objects; None: not given.
    """

    name: str
    mode: ChannelMode = "File"
    distribution: DataDistribution = "FullyReplicated"
    groups: tuple[str, ...] = ()
    content_type: str | None = None

    def is_for(self, group: str) -> bool:
        """Whether hosts of a group have the channel."""
        return not self.groups or group in self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """The resources of a host, as its scripts see them.

    Attributes:
        cpus: CPU cores.
        gpus: Device count.
        interface: The network interface by which the other hosts reach it.
        torch: The version of PyTorch there; "": unknown.
    """

    cpus: int
    gpus: int = 0
    interface: str = "eth0"
    torch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """The facts of a job that are the same on all its hosts.

    Attributes:
        name: The job's name.
        groups: Its instance groups, in the given order.
        entry_point: The script, relative to the code folder.
        distribution: How ranks are started; None: the script runs once on each host.
        distributed: The names of the groups that have ranks.
        processes_per_host: The given number of ranks per host; None: one per device.
        channels: The inputs.
        hyperparameters: JSON values, by name.
        submitted: The origin of the code, a URL or a folder; "": unknown.
        region: The cloud's region; "": none.
        master_port: The rendezvous port on the first host; 0: the contract's usual one.
        log_level: A level of Python's logging.
    """

    name: str
    groups: tuple[HostGroup, ...]
    entry_point: str
    distribution: Distribution | None = None
    distributed: tuple[str, ...] = ()
    processes_per_host: int | None = None
    channels: tuple[Channel, ...] = ()
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    submitted: str = ""
    region: str = ""
    master_port: int = 0
    log_level: int = 20

    def __post_init__(self) -> None:
        if self.distribution is not None and self.distribution not in get_args(Distribution):
            known = ", ".join(get_args(Distribution))
            raise UsageError(f"distribution {self.distribution}: it is one of {known}.")
        names = [group.name for group in self.groups]
        for group in self.distributed:
            if group not in names:
                raise UsageError(
                    f"The distribution is for the instance group {group}, and there is none of "
                    f"that name: there are {', '.join(names)}."
                )
        for channel in self.channels:
            for group in channel.groups:
                if group not in names:
                    raise UsageError(
                        f"Channel {channel.name} is for the instance group {group}, and there is "
                        f"none of that name: there are {', '.join(names)}."
                    )

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts, in the order of their numbers."""
        hosts = [host for group in self.groups for host in group.hosts]
        return tuple(sorted(hosts, key=_by_number))

    @property
    def master(self) -> str:
        """The host of the rendezvous: the first one of the groups that have ranks."""
        meeting = [group for group in self.groups if group.name in self.distributed]
        return meeting[0].hosts[0] if meeting else self.hosts[0]

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
