"""How the attempts of a run are doing: one answer for lists, pages, costs and views.

An attempt goes on while its launcher runs on this host, before its first records and after its
last, too, as while it uploads. In a container, or on another host of a shared file system, its
launcher cannot be looked up: there it goes on while its records are locked. Without an end, one
that began on another host may go on there, or have been killed, and its folder may be a copy: how
it is doing is unknown, which is neither failed nor ended.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from headrace.records.reader import Records, recorded_attempts
from headrace.records.run_folder import Attempt, Outcome, running_launcher


def attempt_outcomes(run: Path, attempts: Sequence[Attempt]) -> list[Outcome]:
    """Return how each attempt of a run is doing, oldest first; the last one alone may go on."""
    earlier = [each.ending for each in attempts[:-1]]
    return [*earlier, last_outcome(run, attempts[-1])] if attempts else []


def last_outcome(run: Path, last: Attempt | None) -> Outcome:
    """Return how a run is doing, by its last attempt, its launcher and who holds its records.

    Args:
        run: Its folder.
        last: Its last attempt; None: none is known, as its run.json cannot be read.
    """
    if last is not None and last.exit_code is None and running_launcher(run, last.launcher):
        return "going on"
    recorded = recorded_attempts(run)
    if recorded and Records(run, recorded[-1]).live:
        return "going on"
    if last is None or is_of_another_host(last):
        return "unknown"
    return last.ending


def is_of_another_host(attempt: Attempt) -> bool:
    """Whether an attempt has no recorded end and began on another host, where it may go on."""
    host = attempt.launcher.get("host", platform.node())
    return attempt.exit_code is None and host != platform.node()
