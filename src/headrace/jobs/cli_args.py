"""The `headrace run` command line: our flags, the script, and whether torchrun is needed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.jobs.environment.existing_job import with_detected_contract
from headrace.jobs.recording import RecordingOptions
from headrace.jobs.spec import (
    CONTRACT_SPELLINGS,
    DRY_RUN,
    ContractOptions,
    ScriptOptions,
    SyncOptions,
)
from headrace.jobs.spec import SCRIPT_SPELLINGS as OF_SCRIPTS
from headrace.jobs.spec import SYNC_SPELLINGS as UPLOAD_SPELLINGS

_JOB_FILES = {".toml", ".yaml", ".yml"}


def check_script(script: str, *, runs_itself: bool = False) -> None:
    """Raise UsageError, with the remedy, where a script cannot be run.

    Args:
        script: The path as typed.
        runs_itself: It is started as a program, not by Python.
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
    """Return a script's path, below the code folder where it exists there.

    Args:
        script: The path as typed.
        source_dir: The code folder; None: not given.

    Raises:
        UsageError: There is no such code folder.
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


HEADRACE_FLAGS = {
    "--run-dir": "run_dir",
    "--run_dir": "run_dir",
    "--runs-dir": "runs_dir",
    "--runs_dir": "runs_dir",
    "--name": "name",
    "--profile": "profile",
    "--profile-interval": "profile_interval",
    "--profile_interval": "profile_interval",
    "--apply": "apply",
    "--engine": "engine",
    "--address": "address",
    "--group": "group",
    "--offload": "offload",
    "--hosts-timeout": "hosts_timeout",
    "--hosts_timeout": "hosts_timeout",
    "--max-preemptions": "max_preemptions",
    "--max_preemptions": "max_preemptions",
    **CONTRACT_SPELLINGS,
    **OF_SCRIPTS,
    **UPLOAD_SPELLINGS,
}
# Options of clusters, and the one that starts ranks.
_NEEDS_TORCHRUN = {
    "engine", "address", "group", "offload", "hosts_timeout", "max_preemptions", "distribution",
}  # fmt: skip
_TORCHRUN_PREFIX = "PET_"  # torchrun reads its flags from such variables too


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectJob:
    """One script in one process, without torchrun.

    Attributes:
        run_dir: The run folder; None: a new one.
        runs_dir: The folder of all runs; None: the default.
        name: The run's name; None: made of the script's name.
        options: How the job is recorded.
        contract: The script's contract with its platform.
        around: The script's variables, time limit, and so on.
        uploads: The files that are synced to URLs.
        module: `script` is a module's name.
        script: The script or module.
        arguments: The script's own arguments.
    """

    run_dir: str | None
    runs_dir: str | None
    name: str | None
    options: RecordingOptions
    contract: ContractOptions
    around: ScriptOptions
    uploads: SyncOptions
    module: bool
    script: str
    arguments: tuple[str, ...]


def direct_job(argv: Sequence[str]) -> DirectJob | None:
    """Return the job of a command line without torchrun or cluster flags, else None.

    Args:
        argv: What follows `headrace run`.

    Raises:
        UsageError: There is no script, or a flag of ours has no value.
    """
    own, rest = split_headrace_flags(argv)
    if rest and rest[0] == "--":
        rest = rest[1:]
    if not rest:
        raise UsageError(
            "headrace run needs a script: headrace run [torchrun's flags] script.py [arguments]."
        )
    module = rest[0] in {"-m", "--module"}
    script = rest[1:] if module else rest
    if _torchrun_is_configured() or not script or script[0].startswith("-"):
        return None
    if own.keys() & _NEEDS_TORCHRUN:
        return None
    last = {name: values[-1] for name, values in own.items()}
    around, contract = ScriptOptions.parse(own), ContractOptions.parse(own)
    return DirectJob(
        run_dir=last.get("run_dir"),
        runs_dir=last.get("runs_dir"),
        name=last.get("name"),
        options=RecordingOptions.parse(
            last.get("profile"), last.get("profile_interval"), last.get("apply"), around.metrics
        ),
        contract=contract if around.dry_run else with_detected_contract(contract),
        around=around,
        uploads=SyncOptions.parse(own),
        module=module,
        script=script[0],
        arguments=tuple(script[1:]),
    )


def split_headrace_flags(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of our own leading flags, and the rest of the command line."""
    own: dict[str, list[str]] = {}
    rest = list(argv)
    while rest:
        flag, equals, value = rest[0].partition("=")
        if rest[0] in DRY_RUN:
            own["dry_run"] = [rest.pop(0)]
            continue
        if flag not in HEADRACE_FLAGS:
            break
        if not equals:
            if len(rest) < 2:
                raise UsageError(f"{flag} needs a value: {flag} {HEADRACE_FLAGS[flag].upper()}.")
            value = rest[1]
        own.setdefault(HEADRACE_FLAGS[flag], []).append(value)
        rest = rest[1 if equals else 2 :]
    return own, rest


def _torchrun_is_configured() -> bool:
    return any(name.startswith(_TORCHRUN_PREFIX) for name in env.child_environment())
