"""The protocol between a job's driver and its hosts: assignment, start barrier, refusals.

Each host prepares itself, reports that it is ready, and waits for all others. So no script starts
anywhere if one host lacks what it needs, and no rank waits at a rendezvous, which has a timeout,
for a host that still copies data.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core.errors import HeadraceError, LaunchError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAssignment:
    """A host's part in the job."""

    spec: Mapping[str, Any]  # the job, as JSON of a `JobSpec`, with paths as they are on this host
    name: str  # the name of the host's node
    prefix: str  # the prefix of output lines, `{rank}` in the place of the rank
    restarts: int  # how often the job's ranks were started before
    hosts: int  # how many hosts have ranks
    number: int  # this host's index among them, or among all hosts where it has none
    address: str
    master_address: str  # the address of host 0
    master_port: int  # a free port of host 0
    # The job's hosts, as JSON of a `HostLayout`; None: no platform contract
    plan: str | None = None
    host: str = ""
    cores: int = 0
    devices: int = 0
    # Ranks per host of an emulated machine type; None: as the command line says
    ranks: int | None = None
    sync_name: str = "host"  # the name under which this host's checkpoints are synced
    all_sync_names: tuple[str, ...] = ()  # those names of all hosts
    # This host, which shares no disk with the launcher, uploads its part of the output, for the
    # launcher to merge
    sends_part: bool = False

    def to_json(self) -> str:
        """Return a text that `from_json` reads, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HostAssignment:
        """Return the assignment of a `to_json` text."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)

    def apply(self, args: argparse.Namespace) -> None:
        """Set torchrun's rendezvous with the other hosts; the driver does the restarts."""
        args.nnodes = str(self.hosts)
        args.node_rank = self.number
        args.local_addr = self.address
        args.master_addr = self.master_address
        args.master_port = self.master_port
        args.max_restarts = 0
        if self.ranks is not None:
            args.nproc_per_node = str(self.ranks)
        # PET_* variables of the host may set these.
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "static", "", "none"
        args.standalone = False


READY, REFUSED = "ready", "refused"
"""The keys of a host's messages: it may start, or the reason why it cannot."""


def wait_at_start_barrier(announce_fd: int, go_fd: int) -> None:
    """Report that this host is ready, and return once all hosts are.

    `go_fd` is the pipe from which a byte is read once all hosts are ready. Raises LaunchError (the
    agent has ended), SystemExit (on ctrl-C: no script has started, so there is nothing to wait
    for).
    """
    os.write(announce_fd, json.dumps({READY: True}).encode() + b"\n")
    try:
        go = os.read(go_fd, 1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    os.close(go_fd)
    if not go:
        raise LaunchError("The agent of this host has ended; look at what the launcher said.")


def announce_refusal(announce_fd: int, error: HeadraceError) -> None:
    """Report to the launcher why this host cannot start."""
    os.write(announce_fd, json.dumps({REFUSED: str(error)}).encode() + b"\n")


def refusal_messages(refusals: Iterable[tuple[str, str]], hosts: int) -> list[str]:
    """Return one message for each reason why hosts cannot start, of pairs of host name and reason.

    A reason that all `hosts` have is printed without their names.
    """
    by_reason: dict[str, list[str]] = {}
    for host, reason in refusals:
        by_reason.setdefault(reason, []).append(host)
    return [
        reason if len(names) == hosts else f"{', '.join(names)}: {reason}"
        for reason, names in by_reason.items()
    ]
