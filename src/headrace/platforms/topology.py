"""The topology of a job as its platform describes it, and the rule for the training group.

Each host applies the rule by itself, only to facts that are the same on all hosts, never to its
own devices.
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
    """The hosts of a job, as its environment describes them."""

    hosts: tuple[str, ...]
    here: str  # this host
    head: str | None  # which the others join; None: unknown
    group: str  # of this host
    groups: tuple[HostGroup, ...] = ()  # all, the same on every host; empty: unknown
    training: str | None = None  # the training group's name; None: unknown
    primary: tuple[str, ...] = ()  # hosts that train by the platform's convention; empty: none


def parse_json_value(name: str, text: str | None) -> Any:
    """Return the parsed JSON of a variable or file, None where it is empty; raises UsageError."""
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON ({error}). Correct or unset it.") from None


def parse_names(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of a parsed variable, none for None; raises UsageError if it has no list."""
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
    platform: str | None,
    offload: str | None,
) -> HostGroup:
    """Return the training group; raises UsageError where it is ambiguous.

    The command line may name it (`flagged`), or a head that it contains; the platform may name
    it, too. The offload group does not train unless it is named.
    """
    others = [group for group in groups if group.name != offload]
    candidates = (
        [group for group in groups if group.name == flagged],
        [group for group in others if head in group.hosts],
        [group for group in groups if group.name == platform],
        groups,
        others,
        [group for group in others if group.has_devices],
        [group for group in others if group.name == DEFAULT_GROUP],
    )
    for found in candidates:  # the first unambiguous one
        if len(found) == 1:
            return found[0]
    counted = " ".join(f"--group {group.name}={len(group.hosts)}" for group in groups)
    raise UsageError(
        f"Which of the groups {describe_groups(groups)} trains? Not one alone has devices by its "
        f"type, nor is one called {DEFAULT_GROUP}. Name them on every host, the one that trains "
        f"first, such as {counted}."
    )


def describe_groups(groups: Sequence[HostGroup]) -> str:
    """Return a text of the groups with their hosts, for a message."""
    return ", ".join(f"{group.name} ({', '.join(group.hosts)})" for group in groups)
