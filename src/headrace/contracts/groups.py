"""Instance groups as `--group` names them: hosts of one kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.contracts.instance_types import instance_type
from headrace.core.errors import UsageError

LABEL = "headrace.group"
"""The Ray node label that tells a host's group."""
USUAL_GROUP = "gpu"
"""The group of hosts where nobody names one."""
_HOW = (
    "Write it as --group NAME=HOSTS, and where hosts are emulated NAME=HOSTS:cpus=8,gpus=1 or "
    "NAME=HOSTSxTYPE, such as gpu=1xml.g5.xlarge."
)
# What Ray takes as the value of a label (docs.ray.io, "Use labels to control scheduling").
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SHAPE = ("cpus", "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An instance group.

    Attributes:
        name: As Ray's label `headrace.group` has it.
        hosts: How many hosts of it the job wants.
        cpus: Cores of an emulated host; None: what this machine has.
        gpus: Devices of an emulated host; None: what this machine has, for the group that trains.
        instance_type: Of its hosts, as scripts are told; "": none was named.
    """

    name: str
    hosts: int
    cpus: int | None = None
    gpus: int | None = None
    instance_type: str = ""

    def host_names(self) -> list[str]:
        """Return the names of its hosts where they are emulated: `gpu-0`, `gpu-1`, ..."""
        return [f"{self.name}-{number}" for number in range(self.hosts)]


def parse_groups(texts: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups that `--group` flags name, in their order.

    Raises:
        UsageError: One that cannot be read, or a name that comes twice.
    """
    groups = tuple(_parse(text) for text in texts)
    names = [group.name for group in groups]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--group {name} is given twice: name each group once.")
    return groups


def check_group_name(name: str, where: str, how: str = "") -> str:
    """Return the name of a group; raises UsageError where Ray could not take it as a label.

    Args:
        name: The name.
        where: Who named it, as the message begins.
        how: How it is written there, as the message ends.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: a name has letters, digits, '-', '_' and '.', 63 at most. {how}".rstrip()
        )
    return name


def _parse(text: str) -> Group:
    name, equals, rest = text.partition("=")
    hosts, _, shape = rest.partition(":")
    if not equals:
        raise UsageError(f"--group {text}: how many hosts? {_HOW}")
    check_group_name(name, f"--group {text}", _HOW)
    count, _, kind = hosts.partition("x")
    told = _parse_shape(text, shape)
    if not kind:
        return Group(
            name=name, hosts=_whole(text, hosts, least=1),
            cpus=told.get("cpus"), gpus=told.get("gpus"),
        )  # fmt: skip
    machine = instance_type(kind, f"--group {text}")
    return Group(
        name=name,
        hosts=_whole(text, count, least=1),
        cpus=told.get("cpus", machine.cores),
        gpus=told.get("gpus", machine.devices),
        instance_type=kind,
    )


def _parse_shape(text: str, shape: str) -> dict[str, int]:
    told: dict[str, int] = {}
    for part in filter(None, shape.split(",")):
        name, _, value = part.partition("=")
        if name not in _SHAPE:
            raise UsageError(f"--group {text}: {name} is none of {', '.join(_SHAPE)}. {_HOW}")
        told[name] = _whole(text, value, least=0 if name == "gpus" else 1)
    return told


def _whole(text: str, value: str, *, least: int) -> int:
    if not value.isdecimal() or int(value) < least:
        raise UsageError(f"--group {text}: {value or 'nothing'} is no whole number above "
                         f"{least - 1}. {_HOW}")  # fmt: skip
    return int(value)
