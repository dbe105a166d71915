"""What a rank tells its user of auxiliary hosts."""

from __future__ import annotations

import sys
from contextlib import suppress

from headrace.data.loader.failures import Failure

_PATHS = ("FileNotFoundError", "NotADirectoryError", "No such file or directory")
_MODULES = ("ModuleNotFoundError", "ImportError")
_MOST = 300  # characters of an exception's text


class Teller:
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


def lost_for(host: str) -> str:
    """Return the line about a host whose connection ended."""
    return f"auxiliary host {host} is lost; what it had is made by others"


def silent_for(host: str, seconds: float) -> str:
    """Return the line about a host that says nothing."""
    return f"auxiliary host {host} has been silent for {seconds:.0f} s; others make what it had"


def and_again(batches: int) -> str:
    """Return what a line about a lost host ends with, where an iterable dataset was shared."""
    if not batches:
        return ""
    return f"; of an iterable dataset they first go through {batches} batches again"


def back_from(host: str) -> str:
    """Return the line about a host that was lost and is there again."""
    return f"auxiliary host {host} is back"


def late_there(host: str) -> str:
    """Return the line about a host whose part of an iterable dataset is waited for too long."""
    return f"auxiliary host {host} is late with an iterable dataset; its part is made here"


def nobody_there(strands: int) -> str:
    """Return the line about an iterable dataset that no host takes a part of."""
    return (
        f"no auxiliary host is there for an iterable dataset: what {strands} workers there would "
        "make of it in this iteration is made here"
    )


def refused_there(host: str, failure: Failure) -> str:
    """Return the line about a host that cannot load the dataset."""
    return (
        f"auxiliary host {host} cannot load the dataset, and is not asked: "
        f"{_short(failure.summary)}.{_remedy(failure.summary)}"
    )


def failed_there(host: str, summary: str, *, is_last: bool) -> str:
    """Return the line about a batch that failed on a host and could be made here.

    Args:
        host: The host.
        summary: The exception's type and text.
        is_last: The host is not asked for batches of this loader any more.
    """
    then = "It is asked no more." if is_last else "It was made here."
    return f"a batch failed on auxiliary host {host}: {_short(summary)}. {then}{_remedy(summary)}"


def _short(summary: str) -> str:
    line = " ".join(summary.split()).rstrip(".")
    return line if len(line) <= _MOST else f"{line[:_MOST]}..."


def _remedy(summary: str) -> str:
    if any(each in summary for each in _PATHS):
        return (
            " The dataset reads paths that this host has and that one has not: mount them there at "
            "the same place, or read from object storage (headrace data pack), which keeps a cache "
            "on each host."
        )
    if any(each in summary for each in _MODULES):
        return " Install it on that host: name it in a requirements.txt beside the script."
    return ""
