"""The instance groups of `--group` flags, groups of named hosts, and machine types by name.

instance_types.csv has AWS's types by the names of EC2 (SageMaker prefixes them with `ml.`) and
Google's, from aws.amazon.com/ec2/instance-types and "Machine families" of
docs.cloud.google.com/compute; the rows of p2, g4dn, g5 and the smaller g6 were compared with "GPU
jobs" of the AWS Batch User Guide, the others were not. A NeuronCore of Trainium counts as a device,
as in scripts for it.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError

LOCAL_TYPES = ("local", "local_gpu")
"""The types of hosts on this machine: without devices, and with this machine's devices."""
_TABLE = Path(__file__).with_name("instance_types.csv")
_SAGEMAKER_PREFIX = "ml."


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """A machine type."""

    name: str  # as it was given
    cores: int | None = None  # None: this machine's
    memory_gib: float | None = None  # None: this machine's
    devices: int | None = None  # None: this machine's
    device: str = ""  # the kind of its devices; "": it has none, or unknown


def instance_type(name: str, where: str) -> InstanceType:
    """Return a machine type by its name, such as `local`, `local_gpu`, `ml.g5.xlarge`, `g5.xlarge`.

    UsageError begins with `where`, who gave the name, and has the nearest name.
    """
    if name in LOCAL_TYPES:
        return InstanceType(name=name, devices=0 if name == "local" else None)
    known = known_type(name)
    if known is None:
        raise UsageError(
            f"{where}: there is no instance type {name}.{_nearest_type(name)} Others are "
            "emulated by their cores and devices: --group NAME=HOSTS:cpus=8,gpus=1."
        )
    return known


def known_type(name: str) -> InstanceType | None:
    """Return a cloud's machine type by its name, `ml.g5.xlarge` or `g5.xlarge`; None: unknown."""
    row = _type_rows().get(name.removeprefix(_SAGEMAKER_PREFIX))
    if row is None or (name.startswith(_SAGEMAKER_PREFIX) and row["cloud"] != "aws"):
        return None
    return InstanceType(
        name=name, cores=int(row["cores"]), memory_gib=float(row["memory_gib"]),
        devices=int(row["devices"]), device=row["device"],
    )  # fmt: skip


@cache
def _type_rows() -> dict[str, dict[str, str]]:
    with _TABLE.open(newline="", encoding="utf-8") as file:
        return {row["type"]: row for row in csv.DictReader(file)}


def _nearest_type(name: str) -> str:
    spellings = [*LOCAL_TYPES, *_type_rows()]
    if name.startswith(_SAGEMAKER_PREFIX):
        of_aws = [key for key, row in _type_rows().items() if row["cloud"] == "aws"]
        spellings = [f"{_SAGEMAKER_PREFIX}{key}" for key in of_aws]
    near = difflib.get_close_matches(name, spellings, n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


GROUP_LABEL = "headrace.group"
"""The Ray node label with a host's group."""
DEFAULT_GROUP = "gpu"
"""The group of hosts for which none is named."""
ONLY_GROUP = "homogeneousCluster"
"""SageMaker's name for the only group of a job."""
_GROUP_SYNTAX = (
    "Write it as --group NAME=HOSTS, and where hosts are emulated NAME=HOSTS:cpus=8,gpus=1 or "
    "NAME=HOSTSxTYPE, such as gpu=1xml.g5.xlarge."
)
# Ray's syntax of label values (docs.ray.io, "Use labels to control scheduling").
_GROUP_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SHAPE = ("cpus", "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """An instance group, as a `--group` flag gives it."""

    name: str  # the value of Ray's label `headrace.group`
    hosts: int  # how many of it the job needs
    cpus: int | None = None  # of an emulated host; None: this machine's
    gpus: int | None = None  # of an emulated host; None: this machine's, for the training group
    instance_type: str = ""  # of its hosts, for scripts; "": none was named

    def flag(self) -> str:
        """Return the value of the `--group` flag that gives this group."""
        kind = f"x{self.instance_type}" if self.instance_type else ""
        given = {"cpus": self.cpus, "gpus": self.gpus}
        shape = ",".join(f"{name}={value}" for name, value in given.items() if value is not None)
        return f"{self.name}={self.hosts}{kind}" + (f":{shape}" if shape else "")

    def gpus_a_host(self, devices: int) -> int:
        """Return how many devices an emulated host has, of those that the group's hosts share."""
        return devices // self.hosts if self.gpus is None else self.gpus

    def host_names(self) -> list[str]:
        """Return the names of its emulated hosts: `gpu-0`, `gpu-1`, ..."""
        return [f"{self.name}-{number}" for number in range(self.hosts)]


TRAINING, AUXILIARY = "training", "auxiliary"
"""What the hosts of a group do: they have ranks, or make batches alone."""


def recorded_groups(groups: Sequence[GroupSpec], offload: str | None) -> list[dict[str, Any]]:
    """Return the groups of a job, for run.json: name, hosts, instance type, and what they do.

    A job without groups has this host alone, with its type where the host says which it is. Of a
    group that only `offload` names, the hosts that will make batches are not known: 0.
    """
    if not groups:
        return [_as_recorded("", 1, this_host_type(), TRAINING)]
    if offload not in (None, *(group.name for group in groups)):
        groups = [*groups, GroupSpec(name=str(offload), hosts=0)]
    roles = {group.name: AUXILIARY if group.name == offload else "" for group in groups}
    roles[groups[0].name] = TRAINING
    return [
        _as_recorded(group.name, group.hosts, group.instance_type, roles[group.name])
        for group in groups
    ]


def has_types(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the types of all recorded groups are known; most hosts do not say theirs."""
    return bool(groups) and all(group["instance_type"] for group in groups)


def _as_recorded(name: str, hosts: int, instance_type: str, role: str) -> dict[str, Any]:
    return {"name": name, "hosts": hosts, "instance_type": instance_type, "role": role}


_DMI = Path("/sys/devices/virtual/dmi/id")
_EC2 = "Amazon EC2"


def this_host_type(dmi: Path = _DMI) -> str:
    """Return the instance type of this host, as SageMaker or EC2 tells it; "": it is unknown.

    DMI names the type of EC2's Nitro instances as the product, that of older ones on Xen not, nor
    that of Google's machines: their metadata servers would have to be asked.
    """
    named = env.SM_CURRENT_INSTANCE_TYPE.get()
    if named:
        return named
    try:
        vendor, product = (
            (dmi / name).read_text(encoding="utf-8").strip()
            for name in ("sys_vendor", "product_name")
        )
    except (OSError, UnicodeDecodeError):
        return ""
    return product if vendor == _EC2 and "." in product else ""


def parse_groups(texts: Sequence[str]) -> tuple[GroupSpec, ...]:
    """Return the groups of `--group` flags, in their order; raises UsageError."""
    groups = tuple(_parse_group(text) for text in texts)
    names = [group.name for group in groups]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--group {name} is given twice: name each group once.")
    return groups


def check_group_name(name: str, where: str, how: str = "") -> str:
    """Return the name of a group; raises UsageError where it is no valid Ray label.

    The message begins with `where`, who gave the name, and ends with `how`, the expected syntax.
    """
    if not _GROUP_NAME.fullmatch(name):
        raise UsageError(
            f"{where}: a name has letters, digits, '-', '_' and '.', 63 at most. {how}".rstrip()
        )
    return name


def _parse_group(text: str) -> GroupSpec:
    name, equals, rest = text.partition("=")
    hosts, _, shape = rest.partition(":")
    if not equals:
        raise UsageError(f"--group {text}: how many hosts? {_GROUP_SYNTAX}")
    check_group_name(name, f"--group {text}", _GROUP_SYNTAX)
    count, _, kind = hosts.partition("x")
    shape_values = _parse_shape(text, shape)
    machine = instance_type(kind, f"--group {text}") if kind else InstanceType(name="")
    return GroupSpec(
        name=name,
        hosts=_whole_number(text, count if kind else hosts, least=1),
        cpus=shape_values.get("cpus", machine.cores),
        gpus=shape_values.get("gpus", machine.devices),
        instance_type=kind,
    )


def _parse_shape(text: str, shape: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, shape.split(",")):
        name, _, value = part.partition("=")
        if name not in _SHAPE:
            raise UsageError(
                f"--group {text}: {name} is none of {', '.join(_SHAPE)}. {_GROUP_SYNTAX}"
            )
        found[name] = _whole_number(text, value, least=0 if name == "gpus" else 1)
    return found


def _whole_number(text: str, value: str, *, least: int) -> int:
    if not value.isdecimal() or int(value) < least:
        wrong = f"{value or 'nothing'} is no whole number above {least - 1}"
        raise UsageError(f"--group {text}: {wrong}. {_GROUP_SYNTAX}")
    return int(value)


# The families of AWS whose instances have devices that train, such as ml.g5.xlarge, ml.p4d.24xlarge
# (aws.amazon.com/ec2/instance-types, "Accelerated computing").
_WITH_DEVICES = re.compile(r"(ml\.)?(g|gr|p|trn)\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """An instance group of a job, with named hosts."""

    name: str
    hosts: tuple[str, ...]
    instance_type: str = ""  # "": unknown

    @property
    def has_devices(self) -> bool:
        """Whether hosts of its type have devices, as far as the type is known."""
        return _WITH_DEVICES.match(self.instance_type) is not None
