"""Instance groups whose hosts are known by name, and what the type of their hosts says."""

from __future__ import annotations

import re
from dataclasses import dataclass

# The families of AWS whose instances have devices that train, such as ml.g5.xlarge, ml.p4d.24xlarge
# (aws.amazon.com/ec2/instance-types, "Accelerated computing").
_WITH_DEVICES = re.compile(r"(ml\.)?(g|gr|p|trn)\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """An instance group of a job.

    Attributes:
        name: What it is called.
        hosts: Its hosts' names.
        instance_type: What kind of machine they are; "" where nobody tells.
    """

    name: str
    hosts: tuple[str, ...]
    instance_type: str = ""

    @property
    def has_devices(self) -> bool:
        """Whether hosts of its type have devices, as far as the type tells."""
        return _WITH_DEVICES.match(self.instance_type) is not None
