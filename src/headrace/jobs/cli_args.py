"""The `headrace run` command line: our flags, the script, and whether torchrun is needed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.jobs.environment.existing_job import with_detected_contract
from headrace.jobs.environment.script_command import is_program
from headrace.jobs.options import Option, Texts
from headrace.jobs.spec import JobSpec, Script, job_options

_JOB_FILES = {".toml", ".yaml", ".yml"}


def check_script(script: str) -> None:
    """Raise UsageError, with the remedy, where a script, a path as typed, cannot be run."""
    path = Path(script)
    if path.suffix in _JOB_FILES:
        raise UsageError(
            f"{script} is a job file, and flags of torchrun's stand before it. Say in it how many "
            "ranks there are: instance_count, distribution."
        )
    if not path.exists():
        raise UsageError(f"There is no script {script} in {Path.cwd()}.{_nearest_script(path)}")
    if path.suffix == ".ipynb" and path.is_file():  # JSON that may well be valid Python
        raise UsageError(
            f"{script} is a notebook, which Python cannot run. Make a script of it: "
            f"jupyter nbconvert --to script {script}"
        )
    if path.suffix == ".json" and path.is_file():  # Python would run it, and do nothing
        raise UsageError(
            f"{script} is JSON, which is no script. Job files are .toml or .yaml; as JSON is YAML, "
            f"too, name it {path.with_suffix('.yaml')}."
        )
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(
            f"{script} is a folder without a __main__.py. Name the script, or a module with -m."
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"{script} may not be read. Run `chmod +r {script}`.")
    is_program(script)  # raises where it is neither Python nor a program


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
_TORCHRUN_SWITCHES = (
    "-h", "--help", "-m", "--module", "--no-python", "--run-path", "--standalone",
    "--virtual-local-rank",
)  # fmt: skip
_TORCHRUN_VALUES = (
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf",
    "--max-restarts", "--monitor-interval", "--start-method", "--event-log-handler", "--role",
    "--log-dir", "-r", "--redirects", "-t", "--tee", "--local-ranks-filter",
    "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--node-rank", "--master-addr",
    "--master-port", "--local-addr", "--logs-specs", "--numa-binding", "--signals-to-handle",
    "--shutdown-timeout",
)  # fmt: skip
TORCHRUN_FLAGS: Mapping[str, bool] = {
    spelling: takes_value
    for names, takes_value in ((_TORCHRUN_SWITCHES, False), (_TORCHRUN_VALUES, True))
    for name in names
    for spelling in (name, f"--{name.removeprefix('--').replace('-', '_')}")
    if name.startswith("--") or spelling == name
}
"""Whether torchrun's flags take a value, in all spellings; written down, as not all need torch."""


@cache
def options_by_flag() -> dict[str, Option]:
    """Return the options of a job by each spelling of their flags."""
    return {flag: each for each in job_options().values() for flag in each.spellings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag before the script, ours or torchrun's."""

    words: tuple[str, ...]  # as typed: one, or the flag and its value
    name: str  # the flag alone
    value: str | None  # None: it takes none, or none follows
    lacks_value: bool = False


def split_at_script(
    words: Sequence[str], torchrun_flags: Mapping[str, bool] = TORCHRUN_FLAGS
) -> tuple[list[Flag], list[str]]:
    """Return the flags before the script, and the words from the script on, which stay unread.

    The script is the first word that is neither a flag nor the value of one; a `--` before it is
    left out. Our own flags are never abbreviated. An unknown flag is taken to have a value.
    """
    flags: list[Flag] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if equals:
            flags.append(Flag(words=(word,), name=name, value=value))
        elif not _value_follows(word, torchrun_flags):
            flags.append(Flag(words=(word,), name=word, value=None))
        elif rest:
            value = rest.pop(0)
            flags.append(Flag(words=(word, value), name=word, value=value))
        else:
            flags.append(Flag(words=(word,), name=word, value=None, lacks_value=True))
    return flags, rest


def _value_follows(word: str, torchrun_flags: Mapping[str, bool]) -> bool:
    """Return whether the word after a flag is its value."""
    own = options_by_flag().get(word)
    if own is not None:
        return not own.kind.is_switch
    if word in torchrun_flags:
        return torchrun_flags[word]
    if word.startswith("--"):  # torchrun's parser takes the beginnings of its flags, too
        meant = {takes for flag, takes in torchrun_flags.items() if flag.startswith(word)}
        return meant != {False}
    letters = word[1:]  # -t3 has its value in it, and -mt 3 is -m -t 3
    for place, letter in enumerate(letters):
        if torchrun_flags.get(f"-{letter}", True):
            return place == len(letters) - 1
    return False


def asks_for_help(words: Sequence[str]) -> bool:
    """Return whether --help stands among the flags before the script."""
    for flag in split_at_script(words)[0]:
        if flag.name in {"--help", "-h"}:
            return True
        if flag.name not in TORCHRUN_FLAGS and flag.name not in options_by_flag():
            return False  # whether a value follows is not known here
    return False


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
