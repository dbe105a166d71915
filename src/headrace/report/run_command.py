"""The command line that runs a job once more with a remedy, to be copied from a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from headrace.core.errors import UsageError
from headrace.core.overrides import Override, parse_overrides
from headrace.records.run_folder import Attempt

_VERB = ("headrace", "run")
_OF_THE_OLD_RUN = ("--name", "--run-dir", "--apply")
"""Flags that the new run does not take over as they are: its name is its own, and what was applied
is applied together with the remedy."""


def command_with(attempt: Attempt | None, overrides: Sequence[Override]) -> str | None:
    """Return an attempt's command line with overrides, for a shell.

    None: there are none, secrets are hidden in the command, or `headrace run` was not typed.
    """
    if attempt is None or not overrides or attempt.hides_secrets:
        return None
    command, argv = attempt.command, attempt.argv
    if command[:2] != _VERB or not argv or command[-len(argv) :] != argv:
        return None
    flags, old = _split(command[2 : -len(argv)])
    try:
        both = {(each.name, each.place): each for each in (*_parsed(old), *overrides)}
    except UsageError:
        return None
    applied = ",".join(map(str, both.values()))
    if flags[-1:] == ["--"] and not argv[0].startswith("-"):
        flags.pop()
    # First, as -m stands before what it is about.
    return shlex.join([*_VERB, "--apply", applied, *flags, *argv])


def _split(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags that the new run takes over, and what was applied so far."""
    taken, applied = [], []
    words = iter(flags)
    for word in words:
        name, has_value, value = word.partition("=")
        name = name.replace("_", "-")  # both spellings are the flag
        if name not in _OF_THE_OLD_RUN:
            taken.append(word)
            continue
        value = value if has_value else next(words, "")
        if name == "--apply":
            applied.append(value)
    return taken, applied


def _parsed(texts: Sequence[str]) -> Iterator[Override]:
    for text in texts:
        yield from parse_overrides(text)
