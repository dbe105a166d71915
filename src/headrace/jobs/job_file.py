"""The job file: the arguments and inputs of an Estimator, as TOML or YAML.

`headrace run job.toml` turns it into flags and goes on as if these had been typed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.jobs.cli_args import HEADRACE_FLAGS, split_headrace_flags
from headrace.jobs.job_description import build_run_command, describe
from headrace.jobs.sagemaker_sdk.inputs import named_inputs
from headrace.jobs.spec import DRY_RUN

_TOML, _YAML = (".toml",), (".yaml", ".yml")
SUFFIXES = (*_TOML, *_YAML)
"""Suffixes of job files."""
_INPUTS = "inputs"
_KEYS_HINT = "Write its keys as docs/estimator.md lists them, such as entry_point: train.py."


def with_job_file(argv: Sequence[str]) -> list[str]:
    """Return the command line that a job file stands for; without a job file, the same one.

    Our flags before the file override the file's; arguments after it go to the script, except
    --dry-run, which is ours there, too. The arguments of the job are recorded in run.json.

    Args:
        argv: What follows `headrace run`.

    Raises:
        UsageError: The file cannot be read or holds an invalid value, which is named with its key;
            or a flag of ours follows the file.
    """
    own, rest = split_headrace_flags(argv)
    if not rest or not rest[0].endswith(SUFFIXES):
        return list(argv)
    behind, arguments = _split_after_file(rest[0], rest[1:])
    file, where = Path(rest[0]), f"{rest[0]}: "
    given = _read(file)
    job = describe(given, where, more=(_INPUTS,))
    run_command = build_run_command(job, named_inputs(given.get(_INPUTS), where), where)
    env.change({**run_command.variables, env.JOB_REQUEST.name: run_command.asked})
    for note in run_command.notes:
        print_status(f"headrace: {where}{note}\n")
    flags = list(run_command.flags)
    if job.job_name is not None and not own.keys() & {"run_dir", "name"}:
        flags.append(f"--name={job.job_name}")
    typed = [*argv[: len(argv) - len(rest)], *behind]
    return [*_headrace_flags_first(flags, typed), run_command.script, *arguments]


def _split_after_file(file: str, behind: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split what follows a job file into our flags and the script's arguments.

    Raises:
        UsageError: A flag that may be ours or the script's.
    """
    end = behind.index("--") if "--" in behind else len(behind)
    for argument in behind[:end]:
        flag = argument.partition("=")[0]
        if flag in HEADRACE_FLAGS:
            raise UsageError(
                f"{flag} stands behind {file}, where the script's arguments are. If it is "
                f"Headrace's, write it before: headrace run {flag} ... {file}. If it is the "
                f"script's, write -- first: headrace run {file} -- {flag} ..."
            )
    ours = [argument for argument in behind[:end] if argument in DRY_RUN]
    theirs = [argument for argument in behind[:end] if argument not in DRY_RUN]
    return ours, [*theirs, *behind[end + 1 :]]


def _headrace_flags_first(flags: Sequence[str], typed: Sequence[str]) -> list[str]:
    """Return all flags, torchrun's last: our flags are recognised only before those."""
    torchruns = [flag for flag in flags if flag.startswith(("--nproc-per-node", "--max-restarts"))]
    return [*(flag for flag in flags if flag not in torchruns), *typed, *torchruns]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"There is no job file {file} in {Path.cwd()}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error
    found = _toml(file, text) if file.suffix in _TOML else _yaml(file, text)
    if not isinstance(found, Mapping) or not found:
        raise UsageError(f"{file} holds no keys. {_KEYS_HINT}")
    return found


def _toml(file: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is no TOML: {error}.") from error


def _yaml(file: Path, text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is no YAML: {' '.join(str(error).split())}.") from error
