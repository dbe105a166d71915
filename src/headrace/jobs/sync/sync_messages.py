"""What sync processes have in common: messages with the launcher, errors, the last deadline."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import HeadraceError
from headrace.core.lazy import blake2b
from headrace.core.process.sidecar import SidecarParent

_ORPHAN_DEADLINE_S = 60.0
SILENCE_S = 600.0
"""How long a process may show no progress before it counts as stuck; a request to a store has a
shorter deadline of its own."""
FENCED_EXIT_CODE = 3
"""A sync process's, where another job has taken over: it is not started again then."""
_UNSAFE_IN_HOSTS = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_HOST = 64  # as Linux takes it; names of objects have it beside a file's name
_HASH_BYTES = 8


def safe_host_name(host: str) -> str:
    """Return the one form of a host's name in paths and in a remote copy; that form is its own.

    The dots of a network's names, in which there are no underscores, become underscores. Where
    more is replaced or cut, a hash of the whole name keeps two hosts apart.
    """
    safe = _UNSAFE_IN_HOSTS.sub("_", host)
    if safe == host.replace(".", "_") and 0 < len(safe) <= _LONGEST_HOST:
        return safe
    digest = blake2b(host.encode(errors="surrogatepass"), _HASH_BYTES).hex()
    return f"{safe[: _LONGEST_HOST - 2 * _HASH_BYTES - 1]}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTask:
    """The task of a process that restores a folder from its remote copy, or syncs it."""

    verb: Literal["fetch", "keep"]
    url: str  # of the remote copy
    folder: str
    host: str  # as messages have it; names at the URL are its `safe_host_name`
    others: Sequence[str] | None  # the job's other hosts; None: unknown
    seen_as: Sequence[str] = ()  # other paths of the folder, as the script has them
    since_ns: int  # when the job began, in nanoseconds since 1970 (UTC)
    lock: str  # of several processes on this machine with the same lock file, one works


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTask:
    """The task of a process that uploads a job's outputs."""

    role: Literal["job", "part"]  # another host merges a part
    url: str
    job: str
    run: str  # the run folder on this host


def read_job_end(parent: SidecarParent) -> tuple[bool, bool, float]:
    """Return whether the launcher sent an end, whether no rank was killed, a deadline (s)."""
    message = parent.read()
    if message is None:
        return False, False, _ORPHAN_DEADLINE_S
    return True, message["clean"], message["deadline_s"]


def exit_code_of_task(
    work: Callable[[], None], report: Callable[[str], object], folder: str
) -> int:
    """Do a task, report its error to the user, and return the exit code."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # see `is_being_written`
    try:
        work()
    except HeadraceError as error:
        report(str(error))
        return error.exit_code
    except OSError as error:
        report(f"{folder}: {error}")
        return 1
    return 0


@contextmanager
def exit_at_deadline(
    deadline_s: float, report: Callable[[str], object], late: str, them: str
) -> Iterator[None]:
    """Run the last upload; end this process where it takes too long."""

    def give_up() -> None:
        report(f"{late} Start the run again (headrace resume) to have {them} uploaded.")
        os._exit(1)

    last = threading.Timer(deadline_s, give_up)
    last.daemon = True
    last.start()
    yield
    last.cancel()
