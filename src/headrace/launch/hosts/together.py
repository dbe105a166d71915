"""The hosts of a job begin together: each gets ready, says so, and waits until all others have.

Where one of them cannot have what its script needs, no script has begun anywhere; and where one
takes longer, by a copy say, ranks of others do not wait for it at a rendezvous, which gives up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable

from headrace.core.errors import HeadraceError, LaunchError

READY, REFUSED = "ready", "refused"
"""What a host announces: that it may begin, or why it may not."""


def begin_together(announce_fd: int, go_fd: int) -> None:
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


def refusals_told(refusals: Iterable[tuple[str, str]], hosts: int) -> list[str]:
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
