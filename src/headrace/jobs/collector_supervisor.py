"""The collector process of an attempt, as the launcher sees it."""

from __future__ import annotations

from pathlib import Path

from headrace.core.console import print_status
from headrace.core.process.sidecar import RestartedSidecar
from headrace.jobs.failure import describe_exit

_CLOSE_S = 60.0
_MAX_RESTARTS = 9


class CollectorSupervisor:
    """The collector process of one attempt, restarted when it is killed.

    Args:
        records: The attempt's records folder.
        attempt: The attempt's number.
    """

    def __init__(self, records: Path, attempt: int) -> None:
        self._records = records
        self._sidecar = RestartedSidecar(
            "headrace.observe.probe.collector_process",
            {"folder": str(records), "attempt": attempt},
            restarts=_MAX_RESTARTS,
            killed=_print_killed,
        )

    def finish(self) -> None:
        """End the collector; where closing the records takes too long, they stay as they are."""
        if self._sidecar.end(patience_s=_CLOSE_S, kills=False) is None:
            print_status(f"headrace: the records in {self._records} are not closed yet\n")


def _print_killed(code: int, has_restarted: bool) -> None:  # noqa: FBT001 - a callback
    what = (
        "another takes over" if has_restarted else "what the job does from now on is not recorded"
    )
    print_status(f"headrace: the process that collects records was {describe_exit(code)}; {what}\n")
