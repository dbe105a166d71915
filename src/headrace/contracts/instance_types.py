"""Machine types by their names on AWS, SageMaker and Google Cloud: how many cores and devices.

instance_types.csv has AWS's by the names of EC2 (SageMaker puts `ml.` before them) and Google's.
What they have is told by aws.amazon.com/ec2/instance-types and "Machine families" of
docs.cloud.google.com/compute; the rows of p2, g4dn, g5 and the smaller g6 were compared with "GPU
jobs" of the AWS Batch User Guide, the others not one by one. A NeuronCore of Trainium counts as a
device, as its scripts count.
"""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headrace.core.errors import UsageError

HERE = ("local", "local_gpu")
"""The types of hosts that are this machine: without devices, and with those that it has."""
_TABLE = Path(__file__).with_name("instance_types.csv")
_SAGEMAKERS = "ml."


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """A type of machine.

    Attributes:
        name: As it was asked for.
        cores: How many it has; None: as many as this machine.
        devices: Likewise; None: those of this machine.
        device: What they are; "" where there are none, or nobody says.
    """

    name: str
    cores: int | None = None
    devices: int | None = None
    device: str = ""


def instance_type(name: str, where: str) -> InstanceType:
    """Return a type by its name; raises UsageError, with the nearest one, where there is none.

    Args:
        name: `local`, `local_gpu`, `ml.g5.xlarge`, `g5.xlarge`, `n1-standard-8`, say.
        where: Who named it, as the message begins.
    """
    if name in HERE:
        return InstanceType(name=name, devices=0 if name == "local" else None)
    known = _known()
    row = known.get(name.removeprefix(_SAGEMAKERS))
    if row is None or (name.startswith(_SAGEMAKERS) and row["cloud"] != "aws"):
        raise UsageError(
            f"{where}: there is no instance type {name}.{_nearest(name)} Others are emulated by "
            "their cores and devices: --group NAME=HOSTS:cpus=8,gpus=1."
        )
    return InstanceType(
        name=name, cores=int(row["cores"]), devices=int(row["devices"]), device=row["device"]
    )


@cache
def _known() -> dict[str, dict[str, str]]:
    with _TABLE.open(newline="", encoding="utf-8") as file:
        return {row["type"]: row for row in csv.DictReader(file)}


def _nearest(name: str) -> str:
    spellings = [*HERE, *_known()]
    if name.startswith(_SAGEMAKERS):
        spellings = [
            f"{_SAGEMAKERS}{key}" for key, row in _known().items() if row["cloud"] == "aws"
        ]
    near = difflib.get_close_matches(name, spellings, n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""
