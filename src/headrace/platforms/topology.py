"""The hosts of a job as a platform names them, and the rule for which of its groups trains.

Each host decides for itself, by what all hosts are told alike: never by its own devices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import DEFAULT_GROUP, HostGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTopology:
    """The hosts of a job, as its environment tells them.

    Attributes:
        hosts: All of them.
        here: This one.
        head: The one that the others join; None: none is named.
        group: This one's instance group.
        groups: All groups, the same on every host; empty: they are not told.
        training: The group that trains; None: none is named.
        primary: The hosts that train by what all jobs of that service agree on; empty: no such.
    """

    hosts: tuple[str, ...]
    here: str
    head: str | None
    group: str
    groups: tuple[HostGroup, ...] = ()
    training: str | None = None
    primary: tuple[str, ...] = ()


def parse_json_value(name: str, text: str | None) -> Any:
    """Return what a variable's JSON says, None where it is unset or empty.

    Args:
        name: The variable's, or the file's.
        text: What it says.

    Raises:
        UsageError: It is no JSON.
    """
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON ({error}). Correct or unset it.") from None


def parse_names(name: str, value: Any) -> tuple[str, ...]:
    """Return a list of names that a variable holds; raises UsageError where it is none.

    Args:
        name: The variable's.
        value: Parsed; None for no names.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise UsageError(f"{name} is not a list of names: {value!r}. Correct or unset it.")
    return tuple(value)


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
        [group for group in others if group.name == DEFAULT_GROUP],
    )
    for left in ways:  # the first that leaves no doubt
        if len(left) == 1:
            return left[0]
    counted = " ".join(f"--group {group.name}={len(group.hosts)}" for group in groups)
    raise UsageError(
        f"Which of the groups {describe_groups(groups)} trains? Not one alone has devices by its "
        "type, "
        f"nor is one called {DEFAULT_GROUP}. Name them on every host, the one that trains first, "
        f"such as {counted}."
    )


def describe_groups(groups: Sequence[HostGroup]) -> str:
    """Return the groups with their hosts, for a message."""
    return ", ".join(f"{group.name} ({', '.join(group.hosts)})" for group in groups)
