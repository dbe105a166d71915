"""Status lines about auxiliary hosts, and which failures exclude a host from more batches."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer
from headrace.offload.connection import IncomingFrame, ServerConnection

_PATH_ERRORS = ("FileNotFoundError", "NotADirectoryError", "No such file or directory")
_IMPORT_ERRORS = ("ModuleNotFoundError", "ImportError")
_MAX_CHARACTERS = 300  # characters of an exception's text


class HostStatusPrinter:
    """Tells lines in the terminal of the job.

    Args:
        on: Whether it does: one of a host's ranks tells.
    """

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def __call__(self, line: str) -> None:
        """Tell a line."""
        if self._on:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"headrace: {line}\n")
                sys.stderr.flush()


def lost_line(host: str) -> str:
    """Return the line about a host whose connection ended."""
    return f"auxiliary host {host} is lost; what it had is made by others"


def silent_line(host: str, seconds: float) -> str:
    """Return the line about a host that says nothing."""
    return f"auxiliary host {host} has been silent for {seconds:.0f} s; others make what it had"


def repeated_batches_clause(batches: int) -> str:
    """Return what a line about a lost host ends with, where an iterable dataset was shared."""
    if not batches:
        return ""
    return f"; of an iterable dataset they first go through {batches} batches again"


def returned_line(host: str) -> str:
    """Return the line about a host that was lost and is there again."""
    return f"auxiliary host {host} is back"


def late_line(host: str) -> str:
    """Return the line about a host whose part of an iterable dataset is waited for too long."""
    return f"auxiliary host {host} is late with an iterable dataset; its part is made here"


def no_host_line(strands: int) -> str:
    """Return the line about an iterable dataset that no host takes a part of."""
    return (
        f"no auxiliary host is there for an iterable dataset: what {strands} workers there would "
        "make of it in this iteration is made here"
    )


def refused_line(host: str, failure: BatchFailure) -> str:
    """Return the line about a host that cannot load the dataset."""
    return (
        f"auxiliary host {host} cannot load the dataset, and is not asked: "
        f"{_shorten(failure.summary)}.{_remedy(failure.summary)}"
    )


def failed_line(host: str, summary: str, *, is_last: bool) -> str:
    """Return the line about a batch that failed on a host and could be made here.

    Args:
        host: The host.
        summary: The exception's type and text.
        is_last: The host is not asked for batches of this loader any more.
    """
    then = "It is asked no more." if is_last else "It was made here."
    return f"a batch failed on auxiliary host {host}: {_shorten(summary)}. {then}{_remedy(summary)}"


def _shorten(summary: str) -> str:
    line = " ".join(summary.split()).rstrip(".")
    return line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}..."


def _remedy(summary: str) -> str:
    if any(each in summary for each in _PATH_ERRORS):
        return (
            " The dataset reads paths that this host has and that one has not: mount them there at "
            "the same place, or read from object storage (headrace data pack), which keeps a cache "
            "on each host."
        )
    if any(each in summary for each in _IMPORT_ERRORS):
        return " Install it on that host: name it in a requirements.txt beside the script."
    return ""


_MAX_FAILURES = 3
_MISSING_PATH = re.compile(
    r"(?:No such file or directory|Not a directory): (['\"])(?P<path>.+?)\1"
    r"|name = '(?P<named>.+?)', errno = 2\b"  # as HDF5 says it
)


def is_excluded_at_first_batch(
    peer: ServerConnection, arrived: IncomingFrame, tell: HostStatusPrinter
) -> bool:
    """Whether a host is asked no more, as it has made no batch and misses a path that is here.

    That says enough by itself; of other failures nobody knows before the batch was made here.
    """
    head = arrived.head
    if head.a != Answer.FAILED or peer.recipe in {peer.proven, peer.refused}:
        return False
    missed = missing_path(BatchFailure.from_bytes(bytes(arrived.body[head.c :])))
    if missed is None:
        return False
    tell(failed_line(peer.host.name, missed, is_last=True))
    return True


def is_excluded_after_failure(
    peer: ServerConnection, recipe: int, summary: str, tell: HostStatusPrinter
) -> bool:
    """Note a batch that failed on a host and was made here; whether that host is asked no more."""
    if peer.refused == recipe:  # it is not, already
        return False
    peer.failures += 1
    is_last = peer.failures >= _MAX_FAILURES
    if peer.failures == 1 or is_last:
        tell(failed_line(peer.host.name, summary, is_last=is_last))
    return is_last


def missing_path(failure: BatchFailure) -> str | None:
    """Return what a failure says of a path that was not there and is here, None: of no such path.

    The path may stand in the exception, or in one that this was raised from.
    """
    for line in (failure.summary, *failure.traceback.splitlines()):
        for found in _MISSING_PATH.finditer(line):
            if os.path.exists(found["path"] or found["named"]):  # noqa: PTH110 - never raises
                is_first = line is failure.summary
                return line if is_first else f"{failure.summary} ({line.strip()})"
    return None
