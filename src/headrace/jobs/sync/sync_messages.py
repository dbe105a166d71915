"""The messages between the launcher and its sync processes: the task, and the job's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.core.process.sidecar import SidecarParent

_ORPHAN_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTask:
    """The task of a process that restores a folder from its remote copy, or syncs it."""

    verb: Literal["fetch", "keep"]
    url: str  # of the remote copy
    folder: str
    host: str
    others: Sequence[str] | None  # the job's other hosts; None: unknown
    lock: str  # of several processes on this machine with the same lock file, one works


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTask:
    """The task of a process that uploads a job's outputs."""

    role: Literal["job", "part"]  # another host merges a part
    url: str
    job: str
    run: str  # the run folder on this host


def job_end(*, clean: bool, deadline_s: float) -> dict[str, Any]:
    """Return the message that the job has ended.

    Args:
        clean: No rank was killed, possibly while it wrote a file.
        deadline_s: How long the upload of the remaining files may take.
    """
    return {"clean": clean, "deadline_s": deadline_s}


def read_job_end(parent: SidecarParent) -> tuple[bool, bool, float]:
    """Return whether the launcher sent an end, whether no rank was killed, a deadline (s)."""
    message = parent.read()
    if message is None:
        return False, False, _ORPHAN_DEADLINE_S
    return True, message["clean"], message["deadline_s"]
