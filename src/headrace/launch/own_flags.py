"""The flags of `headrace run` that are not torchrun's, and when torchrun is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.launch.contract_flags import SPELLINGS, ContractOptions
from headrace.launch.recording import JobOptions
from headrace.launch.script_flags import DRY_RUN, ScriptOptions
from headrace.launch.script_flags import SPELLINGS as OF_SCRIPTS
from headrace.launch.site.outer_job import with_job_around
from headrace.launch.uploads.flags import SPELLINGS as UPLOAD_SPELLINGS
from headrace.launch.uploads.flags import UploadOptions

OWN_FLAGS = {
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
    **SPELLINGS,
    **OF_SCRIPTS,
    **UPLOAD_SPELLINGS,
}
# Those of clusters, and what has ranks started.
_NOT_DIRECT = {
    "engine", "address", "group", "offload", "hosts_timeout", "max_preemptions", "distribution",
}  # fmt: skip
_TORCHRUN_PREFIX = "PET_"  # torchrun reads its flags from such variables too


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectJob:
    """One script in one process, without torchrun.

    Attributes:
        run_dir: The run's folder, if told.
        runs_dir: Where runs lie, if told.
        name: The run's name, if told.
        options: What else was told: whether it is recorded, and so on.
        contract: What the script is told, and how.
        around: What is around it: its variables, its time, and so on.
        uploads: What is kept elsewhere.
        module: The script is a module's name.
        script: The script or module.
        arguments: What it gets.
    """

    run_dir: str | None
    runs_dir: str | None
    name: str | None
    options: JobOptions
    contract: ContractOptions
    around: ScriptOptions
    uploads: UploadOptions
    module: bool
    script: str
    arguments: tuple[str, ...]


def direct_job(argv: Sequence[str]) -> DirectJob | None:
    """Return the job of a command line without any flag of torchrun's or of a cluster's, else None.

    Args:
        argv: What follows `headrace run`.

    Raises:
        UsageError: There is no script, or a flag of ours has no value.
    """
    own, rest = split_own_flags(argv)
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
    if own.keys() & _NOT_DIRECT:
        return None
    last = {name: values[-1] for name, values in own.items()}
    around, contract = ScriptOptions.parse(own), ContractOptions.parse(own)
    return DirectJob(
        run_dir=last.get("run_dir"),
        runs_dir=last.get("runs_dir"),
        name=last.get("name"),
        options=JobOptions.parse(
            last.get("profile"), last.get("profile_interval"), last.get("apply"), around.metrics
        ),
        contract=contract if around.dry_run else with_job_around(contract),
        around=around,
        uploads=UploadOptions.parse(own),
        module=module,
        script=script[0],
        arguments=tuple(script[1:]),
    )


def split_own_flags(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of our own flags that a command line begins with, and what follows."""
    own: dict[str, list[str]] = {}
    rest = list(argv)
    while rest:
        flag, equals, value = rest[0].partition("=")
        if rest[0] in DRY_RUN:
            own["dry_run"] = [rest.pop(0)]
            continue
        if flag not in OWN_FLAGS:
            break
        if not equals:
            if len(rest) < 2:
                raise UsageError(f"{flag} needs a value: {flag} {OWN_FLAGS[flag].upper()}.")
            value = rest[1]
        own.setdefault(OWN_FLAGS[flag], []).append(value)
        rest = rest[1 if equals else 2 :]
    return own, rest


def _torchrun_is_configured() -> bool:
    return any(name.startswith(_TORCHRUN_PREFIX) for name in env.child_environment())
