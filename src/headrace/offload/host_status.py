"""Status lines about auxiliary hosts, and which failures exclude a host from more batches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer
from headrace.offload.connection import IncomingFrame, ServerConnection

_PATH_ERRORS = ("FileNotFoundError", "NotADirectoryError", "No such file or directory")
_IMPORT_ERRORS = ("ModuleNotFoundError", "ImportError")
_MAX_CHARACTERS = 300  # characters of an exception's text


def refused_line(host: str, failure: BatchFailure) -> str:
    """Return the line about a host that cannot load the dataset."""
    return (
        f"auxiliary host {host} cannot load the dataset, and is not asked: "
        f"{_shorten(failure.summary)}.{_remedy(failure.summary)}"
    )


def failed_line(host: str, summary: str, *, is_last: bool) -> str:
    """Return the line about a batch that failed on a host, maybe its last, and was made here."""
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
    r"|name = '(?P<named>.+?)', errno = 2\b"  # HDF5's wording
)


def is_excluded_at_first_batch(
    server: ServerConnection, frame: IncomingFrame, print_line: Callable[[str], None]
) -> bool:
    """Whether a host is excluded because its first batch failed for a path that exists here.

    Other failures may be the sample's: they count once the batch was made locally.
    """
    head = frame.head
    if head.a != Answer.FAILED or server.loaded in {server.proven, server.refused}:
        return False
    summary = missing_path(BatchFailure.from_bytes(bytes(frame.body[head.c :])))
    if summary is None:
        return False
    print_line(failed_line(server.host.name, summary, is_last=True))
    return True


def is_excluded_after_failure(
    server: ServerConnection, number: int, summary: str, print_line: Callable[[str], None]
) -> bool:
    """Note a batch that failed on a host and was made locally; whether the host is excluded."""
    if server.refused == number:  # excluded already
        return False
    server.failures += 1
    is_last = server.failures >= _MAX_FAILURES
    if server.failures == 1 or is_last:
        print_line(failed_line(server.host.name, summary, is_last=is_last))
    return is_last


def missing_path(failure: BatchFailure) -> str | None:
    """Return the line of a failure about a path that is missing there and exists here, or None.

    The path may be in the exception, or in one from which it was raised.
    """
    for line in (failure.summary, *failure.traceback.splitlines()):
        for match in _MISSING_PATH.finditer(line):
            if os.path.exists(match["path"] or match["named"]):  # noqa: PTH110 - never raises
                is_first = line is failure.summary
                return line if is_first else f"{failure.summary} ({line.strip()})"
    return None
