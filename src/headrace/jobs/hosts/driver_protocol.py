"""The protocol between a job's driver and its hosts: assignment, start barrier, refusals.

Each host gets ready, says so, and waits until all others have. Where one of them cannot have what
its script needs, no script has begun anywhere; and where one takes longer, by a copy say, ranks of
others do not wait for it at a rendezvous, which gives up.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core.errors import HeadraceError, LaunchError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAssignment:
    """What a host is to the job.

    Attributes:
        prefix: What its ranks' lines begin with, `{rank}` in the place of the rank.
        restarts: How often the job's ranks were started before.
        hosts: How many hosts have ranks.
        number: This host's number among them.
        address: Its own address.
        master_address: That of host 0.
        master_port: A free port there.
        plan: The job's hosts, as `HostLayout` writes them; None: scripts are not told of them.
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
    def from_json(cls, text: str) -> HostAssignment:
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


READY, REFUSED = "ready", "refused"
"""What a host announces: that it may begin, or why it may not."""


def wait_at_start_barrier(announce_fd: int, go_fd: int) -> None:
    """Say that this host is ready, and return once all are.

    Args:
        announce_fd: Where its agent reads what it announces.
        go_fd: From which a byte comes once all are ready.

    Raises:
        LaunchError: The agent is gone.
        SystemExit: By ctrl-C, before any script has begun: there is nothing to wait for.
    """
    os.write(announce_fd, json.dumps({READY: True}).encode() + b"\n")
    try:
        went = os.read(go_fd, 1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    os.close(go_fd)
    if not went:
        raise LaunchError("The agent of this host has ended; look at what the launcher said.")


def announce_refusal(announce_fd: int, error: HeadraceError) -> None:
    """Have the launcher tell why this host may not begin.

    Args:
        announce_fd: Where its agent reads what it announces.
        error: Why.
    """
    os.write(announce_fd, json.dumps({REFUSED: str(error)}).encode() + b"\n")


def refusal_messages(refusals: Iterable[tuple[str, str]], hosts: int) -> list[str]:
    """Return a sentence for each reason why hosts refused to begin.

    Args:
        refusals: Names of hosts, each with its reason.
        hosts: How many there are in all: what all of them say is told of none.
    """
    by_reason: dict[str, list[str]] = {}
    for host, reason in refusals:
        by_reason.setdefault(reason, []).append(host)
    return [
        f"headrace: {reason}\n" if len(said_by) == hosts
        else f"headrace: {', '.join(said_by)}: {reason}\n"
        for reason, said_by in by_reason.items()
    ]  # fmt: skip
