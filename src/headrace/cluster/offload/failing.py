"""What batches that fail on a host say of it: whether it is asked for more."""

from __future__ import annotations

import os
import re

from headrace.cluster.offload.peer import Arriving, Peer
from headrace.cluster.offload.telling import Teller, failed_there
from headrace.data.loader.channels import Answer
from headrace.data.loader.failures import Failure

_MOST_FAILURES = 3
_NO_PATH = re.compile(
    r"(?:No such file or directory|Not a directory): (['\"])(?P<path>.+?)\1"
    r"|name = '(?P<named>.+?)', errno = 2\b"  # as HDF5 says it
)


def fails_at_first(peer: Peer, arrived: Arriving, tell: Teller) -> bool:
    """Whether a host is asked no more, as it has made no batch and misses a path that is here.

    That says enough by itself; of other failures nobody knows before the batch was made here.
    """
    head = arrived.head
    if head.a != Answer.FAILED or peer.recipe in {peer.proven, peer.refused}:
        return False
    missed = path_missed(Failure.from_bytes(bytes(arrived.body[head.c :])))
    if missed is None:
        return False
    tell(failed_there(peer.host.name, missed, is_last=True))
    return True


def fails_again(peer: Peer, recipe: int, summary: str, tell: Teller) -> bool:
    """Note a batch that failed on a host and was made here; whether that host is asked no more."""
    if peer.refused == recipe:  # it is not, already
        return False
    peer.failures += 1
    is_last = peer.failures >= _MOST_FAILURES
    if peer.failures == 1 or is_last:
        tell(failed_there(peer.host.name, summary, is_last=is_last))
    return is_last


def path_missed(failure: Failure) -> str | None:
    """Return what a failure says of a path that was not there and is here, None: of no such path.

    The path may stand in the exception, or in one that this was raised from.
    """
    for line in (failure.summary, *failure.traceback.splitlines()):
        for found in _NO_PATH.finditer(line):
            if os.path.exists(found["path"] or found["named"]):  # noqa: PTH110 - never raises
                is_first = line is failure.summary
                return line if is_first else f"{failure.summary} ({line.strip()})"
    return None
