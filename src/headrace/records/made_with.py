"""What a run was made with, as far as its folder tells: script, overrides, versions."""

from __future__ import annotations

import shlex

from headrace.core.errors import LaunchError
from headrace.records.reading import Records
from headrace.records.run_folder import RunFolder

_APPLY = "--apply"


def made_with(records: Records) -> dict[str, str]:
    """Return the script with its arguments, what was applied, and the versions of packages.

    Args:
        records: Of the attempt that is asked for.

    Returns:
        What it is called, and what it was; empty where the folder has only records.
    """
    try:
        attempts = RunFolder(records.path).attempts()
    except LaunchError:
        return {}
    for attempt in attempts:
        if attempt.number == records.attempt:
            applied = _applied(attempt.command[: -len(attempt.argv) or None])
            return {"script": shlex.join(attempt.argv), _APPLY: applied, **attempt.versions}
    return {}


def _applied(flags: tuple[str, ...]) -> str:
    """Return what `--apply` said; "-" where it was not given."""
    found = "-"
    for flag, following in zip(flags, (*flags[1:], ""), strict=True):
        name, equals, value = flag.partition("=")
        if name == _APPLY:
            found = value if equals else following
    return found
