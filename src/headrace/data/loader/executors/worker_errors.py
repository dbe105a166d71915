"""The errors of executors with worker processes: deaths in a row, and overdue batches."""

from __future__ import annotations

import signal

from headrace.core.errors import LoaderError, LoaderTimeoutError


def describe_exit(status: int) -> str:
    """Return how a process ended, from its exit status."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def deaths_error(rank: int, deaths: int, status: int, at: str) -> LoaderError:
    """Return the error for workers that died in a row, the last with `status` at a sample."""
    return LoaderError(
        f"rank {rank}: {deaths} workers in turn ended without making a batch, the last with "
        f"{describe_exit(status)} at {at}. SIGKILL often means that memory ran out; SIGSEGV is a "
        "crash in native code that the dataset calls."
    )


def overdue_error(
    rank: int, batch: int, timeout_s: float, *, source: str = "", at: str = ""
) -> LoaderTimeoutError:
    """Return the error for a batch that somebody is making, from a source or at a sample."""
    return LoaderTimeoutError(
        f"rank {rank}: batch {batch} did not arrive{source} within {timeout_s:g} s.{at} Raise "
        "timeout_s if the work really takes that long."
    )


def not_begun_error(rank: int, batch: int, timeout_s: float, workers: int) -> LoaderTimeoutError:
    """Return the error for a batch that none of the workers has begun."""
    return LoaderTimeoutError(
        f"rank {rank}: batch {batch} did not arrive within {timeout_s:g} s and no worker has begun "
        f"it: all {workers} are still starting or busy with earlier batches."
    )
