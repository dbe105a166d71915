"""A training job as SageMaker and Vertex AI describe one to its scripts: groups and channels."""

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
    """A named input, as a script is told of it.

    Attributes:
        name: What it is called.
        mode: How its data reach the script.
        distribution: Whether each host has all of its objects, or a share of them.
        groups: The instance groups whose hosts have it; empty: all.
        content_type: Of its objects; None: not told.
    """

    name: str
    mode: ChannelMode = "File"
    distribution: DataDistribution = "FullyReplicated"
    groups: tuple[str, ...] = ()
    content_type: str | None = None

    def is_for(self, group: str) -> bool:
        """Whether hosts of a group have it."""
        return not self.groups or group in self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """What a host has, as scripts on it are told.

    Attributes:
        cpus: Cores.
        gpus: Devices.
        interface: The network interface by which the other hosts reach it.
        torch: The version of PyTorch there; "": unknown.
    """

    cpus: int
    gpus: int = 0
    interface: str = "eth0"
    torch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What all hosts of a job are told alike.

    Attributes:
        name: The job's.
        groups: Its instance groups, in the order in which they were named.
        entry_point: The script, from the folder of the code on.
        distribution: What starts several ranks; None: the script runs once on each host.
        distributed: The names of the groups in which it does so.
        processes_per_host: How many ranks each host was asked to have; None: nobody said, and it
            has one a device.
        channels: The inputs.
        hyperparameters: Anything JSON can hold, by names.
        submitted: Where the code came from, a URL or a folder; "" where nobody tells.
        region: The cloud's region; "": none.
        master_port: Where ranks meet on the first host; 0: where the contract usually has them.
        log_level: As Python's logging counts.
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
        """The host where ranks meet: the first one of the groups that are distributed."""
        meeting = [group for group in self.groups if group.name in self.distributed]
        return meeting[0].hosts[0] if meeting else self.hosts[0]

    def group_of(self, host: str) -> HostGroup:
        """Return the group of a host; raises UsageError where it is none of the job's."""
        for group in self.groups:
            if host in group.hosts:
                return group
        raise UsageError(
            f"There is no host {host} in this job. Its hosts: {', '.join(self.hosts)}."
        )

    def channels_of(self, host: str) -> tuple[Channel, ...]:
        """Return the inputs that a host has."""
        group = self.group_of(host).name
        return tuple(channel for channel in self.channels if channel.is_for(group))


def _by_number(host: str) -> tuple[str, int, str]:
    """Sort algo-2 before algo-10."""
    stem, dash, number = host.rpartition("-")
    return (stem, int(number), host) if dash and number.isdecimal() else (host, 0, host)
