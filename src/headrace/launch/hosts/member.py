"""One host of a cluster's job: what the driver tells the process that runs the host's ranks."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a host is to the job.

    Attributes:
        prefix: What its ranks' lines begin with, `{rank}` in the place of the rank.
        restarts: How often the job's ranks were started before.
        hosts: How many hosts have ranks.
        number: This host's number among them.
        address: Its own address.
        master_address: That of host 0.
        master_port: A free port there.
        plan: The job's hosts, as `SitePlan` writes them; None: scripts are not told of them.
        host: This host, as the plan calls it.
        cores: This host's.
        devices: Likewise.
        ranks: On each host, by its named type; None: as the command line says.
        kept_as: What this host's checkpoints are kept as.
        kept_by: Likewise, of all hosts.
        sends_part: What it makes goes to the output path for the launcher to put together; it
            shares no disk with it.
    """

    prefix: str
    restarts: int
    hosts: int
    number: int
    address: str
    master_address: str
    master_port: int
    plan: str | None = None
    host: str = ""
    cores: int = 0
    devices: int = 0
    ranks: int | None = None
    kept_as: str = "host"
    kept_by: tuple[str, ...] = ()
    sends_part: bool = False

    def to_json(self) -> str:
        """Return a text that `from_json` reads, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Member:
        """Return the member that `to_json` told."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)

    def apply(self, args: argparse.Namespace) -> None:
        """Have torchrun meet the other hosts; restarts are the driver's.

        Args:
            args: torchrun's, which are changed.
        """
        args.nnodes = str(self.hosts)
        args.node_rank = self.number
        args.local_addr = self.address
        args.master_addr = self.master_address
        args.master_port = self.master_port
        args.max_restarts = 0
        if self.ranks is not None:
            args.nproc_per_node = str(self.ranks)
        # What PET_* variables of the host may say.
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "static", "", "none"
        args.standalone = False
