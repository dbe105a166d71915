"""A job in a file, TOML or YAML, as the command line that it stands for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.jobs.cli_args import options_by_flag, split_headrace_flags
from headrace.jobs.job_request import request_job
from headrace.jobs.options import Texts
from headrace.jobs.sagemaker_sdk.inputs import named_inputs

_TOML, _YAML = (".toml",), (".yaml", ".yml")
_SUFFIXES = (*_TOML, *_YAML)
INPUTS = "inputs"
"""The key of a job's channels."""
_DRY_RUN = "dry_run"
_KEYS_HINT = "Write its keys as docs/estimator.md lists them, such as entry_point: train.py."


def with_job_file(argv: Sequence[str]) -> list[str]:
    """Return the command line that a job file stands for; without a job file, the same one.

    Our flags before the file override the file's; arguments after it go to the script, except
    --dry-run, which is ours there, too. The arguments of the job are recorded in run.json. `argv`
    is what follows `headrace run`. Raises UsageError (the file cannot be read or holds an invalid
    value, which is named with its key; or a flag of ours follows the file).
    """
    own, rest = split_headrace_flags(argv)
    if not rest or not is_job_file(rest[0]):
        return list(argv)
    behind, arguments = _split_after_file(rest[0], rest[1:])
    file, where = Path(rest[0]), f"{rest[0]}: "
    given = read_job_file(file)
    if "sweep" in given:
        raise UsageError(f"{file} is a sweep of several runs: headrace sweep {file}")
    inputs = named_inputs(given.get(INPUTS), where)
    request = request_job(given, inputs, where, more=(INPUTS,))
    env.change({**request.variables, env.JOB_REQUEST.name: request.arguments_json()})
    for note in request.notes:
        print_status(f"{where}{note}")
    typed = {**own, **behind}
    if request.job_name is not None and not own.keys() & {"run_dir", "name"}:
        typed["name"] = [request.job_name]
    return [*request.words(typed), *arguments]


def is_job_file(name: str) -> bool:
    """Whether a file is a job file, by its name."""
    return name.endswith(_SUFFIXES)


def _split_after_file(file: str, behind: Sequence[str]) -> tuple[Texts, list[str]]:
    """Split what follows a job file into options of ours and the script's arguments.

    Raises UsageError (a flag that may be ours or the script's).
    """
    end = behind.index("--") if "--" in behind else len(behind)
    ours: dict[str, list[str]] = {}
    theirs = list(behind[end + 1 :])
    for argument in reversed(behind[:end]):
        flag = argument.partition("=")[0]
        found = options_by_flag().get(flag)
        if found is None:
            theirs.insert(0, argument)
        elif found.name == _DRY_RUN:
            ours[_DRY_RUN] = ["true"]
        else:
            raise UsageError(
                f"{flag} stands behind {file}, where the script's arguments are. If it is "
                f"Headrace's, write it before: headrace run {flag} ... {file}. If it is the "
                f"script's, write -- first: headrace run {file} -- {flag} ..."
            )
    return ours, theirs


def read_job_file(file: Path) -> Mapping[str, Any]:
    """Return the keys of a TOML or YAML file; raises UsageError."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors of Windows begin it with a BOM
    except FileNotFoundError:
        raise UsageError(f"There is no job file {file} in {Path.cwd()}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error
    found = _parse(file, text)
    if not isinstance(found, Mapping) or not found:
        raise UsageError(f"{file} holds no keys. {_KEYS_HINT}")
    return found


def _parse(file: Path, text: str) -> object:
    try:
        if file.suffix in _TOML:
            return tomllib.loads(text)
        return _load_yaml(text, file)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is no TOML: {error}.") from error
    except RecursionError as error:
        raise UsageError(f"{file} has lists or keys too deep within each other.") from error
    except UsageError:
        raise
    except (ValueError, AttributeError) as error:  # Python's own; AttributeError: !!timestamp x
        raise UsageError(
            f"{file} has a date that is none, or a number that is none or too long. Write it in "
            "quotes."
        ) from error


def _load_yaml(text: str, file: Path) -> object:
    import yaml

    try:
        _check_yaml_keys(yaml.compose(text, yaml.SafeLoader), file)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        # Not its own text, which quotes the line, and a secret may stand there.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (at line {mark.line + 1}, column {mark.column + 1})"
        parts = (getattr(error, name, None) for name in ("context", "problem"))
        why = ", ".join(filter(None, parts)) or type(error).__name__
        raise UsageError(f"{file} is no YAML: {why}{where}.") from error


def _check_yaml_keys(document: Any, file: Path) -> None:
    """Raise UsageError where a key stands twice in one place: the loader takes the last of them."""
    left, seen = [document], set()
    while left:
        node = left.pop()
        if id(node) in seen or not isinstance(getattr(node, "value", None), list):
            continue
        seen.add(id(node))  # an alias may lead back to it
        names = set()
        for entry in node.value:
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            left.append(value)
            name = key and (key.tag, str(key.value))
            if name in names:
                mark = key.start_mark
                raise UsageError(
                    f"{file} has the key {key.value} twice (at line {mark.line + 1}, column "
                    f"{mark.column + 1}). Leave one of them out."
                )
            names |= {name} if key else set()
