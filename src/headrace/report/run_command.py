"""The command line that runs a job once more with a remedy, to be copied from a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from headrace.core.overrides import Override
from headrace.records.run_folder import Attempt

_VERB = ("headrace", "run")
_OF_THE_OLD_RUN = ("--name", "--run-dir", "--apply")
"""Flags that the new run does not take over: its name is its own, and the remedy is applied."""


def command_with(attempt: Attempt | None, overrides: Sequence[Override]) -> str | None:
    """Return an attempt's command line with overrides, for a shell.

    None: there are none, secrets are hidden in the command, or `headrace run` was not typed.
    """
    if attempt is None or not overrides or attempt.hides_secrets:
        return None
    command, argv = attempt.command, attempt.argv
    if command[:2] != _VERB or not argv or command[-len(argv) :] != argv:
        return None
    flags = _without_old(command[2 : -len(argv)])
    applied = ",".join(map(str, overrides))
    return shlex.join([*_VERB, *flags, "--apply", applied, *argv])


def _without_old(flags: Sequence[str]) -> Iterator[str]:
    words = iter(flags)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in _OF_THE_OLD_RUN:
            yield word
        elif not has_value:
            next(words, None)
