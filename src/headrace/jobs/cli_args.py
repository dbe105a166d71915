"""The `headrace run` command line: our flags, the script, and whether torchrun is needed."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.jobs.environment.existing_job import with_detected_contract
from headrace.jobs.options import Option, Texts
from headrace.jobs.spec import JobSpec, Script, job_options

_JOB_FILES = {".toml", ".yaml", ".yml"}


def check_script(script: str, *, runs_itself: bool = False) -> None:
    """Raise UsageError, with the remedy, where a script, a path as typed, cannot be run.

    With `runs_itself` it is started as a program, not by Python.
    """
    path = Path(script)
    if path.suffix in _JOB_FILES and not runs_itself:
        raise UsageError(
            f"{script} is a job file, and flags of torchrun's stand before it. Say in it how many "
            "ranks there are: instance_count, distribution."
        )
    if runs_itself:
        if path.exists() and not os.access(path, os.X_OK):
            raise UsageError(f"{script} may not be executed. Run `chmod +x {script}`.")
        return  # a bare name is looked up on PATH at the start
    if not path.exists():
        raise UsageError(f"There is no script {script} in {Path.cwd()}.{_nearest_script(path)}")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(
            f"{script} is a folder without a __main__.py. Name the script, or a module with -m."
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"{script} may not be read. Run `chmod +r {script}`.")


def find_script(script: str, source_dir: str | None) -> str:
    """Return a script's path, as typed or below the code folder where it exists there.

    Without a code folder it is None. Raises UsageError (there is no such code folder).
    """
    if source_dir is None:
        return script
    if not Path(source_dir).is_dir():
        raise UsageError(f"--source-dir {source_dir}: there is no such folder in {Path.cwd()}.")
    inside = Path(source_dir) / script
    return str(inside) if inside.exists() or not Path(script).exists() else script


def _nearest_script(path: Path) -> str:
    neighbours = [entry.name for entry in path.parent.glob("*.py")]
    close = difflib.get_close_matches(path.name, neighbours, n=1)
    return f" Did you mean {path.parent / close[0]}?" if close else ""


_TORCHRUN_PREFIX = "PET_"  # torchrun reads its flags from such variables too


@cache
def options_by_flag() -> dict[str, Option]:
    """Return the options of a job by each spelling of their flags."""
    return {flag: each for each in job_options().values() for flag in each.spellings}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of all options to a parser, whose values are then read by `option_values`."""
    for each in job_options().values():
        if each.kind.is_switch:
            parser.add_argument(*each.spellings, action="append_const", const="true", default=[])
        else:
            parser.add_argument(*each.spellings, action="append", default=[])


def switches() -> frozenset[str]:
    """Return the flags of options, in all their spellings, that take no value."""
    options = job_options().values()
    return frozenset(flag for each in options if each.kind.is_switch for flag in each.spellings)


def option_values(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the texts of the options that were parsed by `add_options` flags."""
    return {name: getattr(args, name) for name in job_options() if getattr(args, name)}


def direct_job(argv: Sequence[str]) -> JobSpec | None:
    """Return the job of a command line without torchrun or cluster flags, else None.

    `argv` is what follows `headrace run`. Raises UsageError (there is no script, or a flag of ours
    has no value).
    """
    own, rest = split_headrace_flags(argv)
    if rest and rest[0] == "--":
        rest = rest[1:]
    if not rest:
        raise UsageError(
            "headrace run needs a script: headrace run [torchrun's flags] script.py [arguments]."
        )
    is_module = rest[0] in {"-m", "--module"}
    script = rest[1:] if is_module else rest
    if not script or script[0].startswith("-"):
        return None
    if any(name.startswith(_TORCHRUN_PREFIX) for name in env.child_environment()):
        return None
    if any(job_options()[name].needs_torchrun for name in own):
        return None
    job = JobSpec.parse(
        own, Script(path=script[0], is_module=is_module, arguments=tuple(script[1:]))
    )
    return replace(job, contract=with_detected_contract(job.contract))


def split_headrace_flags(argv: Sequence[str]) -> tuple[Texts, list[str]]:
    """Return the texts of our own leading flags, by option name, and the rest of the words."""
    own: dict[str, list[str]] = {}
    rest = list(argv)
    while rest:
        flag, equals, value = rest[0].partition("=")
        found = options_by_flag().get(flag)
        if found is None or (found.kind.is_switch and equals):
            break
        rest.pop(0)
        if found.kind.is_switch:
            value = "true"
        elif not equals:
            if not rest:
                raise UsageError(f"{flag} needs a value: {flag} {found.name.upper()}.")
            value = rest.pop(0)
        own.setdefault(found.name, []).append(value)
    return own, rest
