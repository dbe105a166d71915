"""Which of a job's instance groups trains, where its environment tells all of them.

Each host decides for itself, by what all hosts are told alike: never by its own devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.contracts.groups import USUAL_GROUP
from headrace.contracts.host_group import HostGroup
from headrace.core.errors import UsageError


def training_group(
    groups: Sequence[HostGroup],
    *,
    flagged: str | None,
    head: str | None,
    told: str | None,
    offload: str | None,
) -> HostGroup:
    """Return the group that trains.

    Args:
        groups: All of them.
        flagged: The one that the command line says trains.
        head: The head, where the command line names it: its group trains.
        told: The one that the environment says trains.
        offload: The one that makes batches: where nobody says which one trains, it does not.

    Raises:
        UsageError: Nothing says which one.
    """
    others = [group for group in groups if group.name != offload]
    ways = (
        [group for group in groups if group.name == flagged],
        [group for group in others if head in group.hosts],
        [group for group in groups if group.name == told],
        groups,
        others,
        [group for group in others if group.has_devices],
        [group for group in others if group.name == USUAL_GROUP],
    )
    for left in ways:  # the first that leaves no doubt
        if len(left) == 1:
            return left[0]
    counted = " ".join(f"--group {group.name}={len(group.hosts)}" for group in groups)
    raise UsageError(
        f"Which of the groups {told_groups(groups)} trains? Not one alone has devices by its type, "
        f"nor is one called {USUAL_GROUP}. Name them on every host, the one that trains first, "
        f"such as {counted}."
    )


def told_groups(groups: Sequence[HostGroup]) -> str:
    """Return the groups with their hosts, for a message."""
    return ", ".join(f"{group.name} ({', '.join(group.hosts)})" for group in groups)
