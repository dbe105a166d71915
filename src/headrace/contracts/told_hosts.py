"""What an environment says about the hosts of a job, and how its JSON is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.contracts.host_group import HostGroup
from headrace.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldHosts:
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


def parse_told(name: str, text: str | None) -> Any:
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


def names_in(name: str, value: Any) -> tuple[str, ...]:
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
