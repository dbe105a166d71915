"""How the texts of a job's options are read and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from headrace.core import env
from headrace.core.errors import UsageError, choices_hint
from headrace.core.units import parse_seconds
from headrace.platforms.script_contract import ContractName
from headrace.records.layout import STEP_GROUP

_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.1, 60.0
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_max_run(text: str) -> float:
    """Parse the longest time of a job and return seconds; raises UsageError."""
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        limit_s = float(text)
    elif re.fullmatch(r"\s*\d+(\.\d+)?\s*h\s*", text):
        limit_s = float(text.strip().removesuffix("h")) * 3600
    else:
        try:
            limit_s = parse_seconds(text)
        except UsageError:
            limit_s = 0.0
    if limit_s <= 0:
        raise UsageError(f"--max-run {text}: it is no time. Write it as 3600 (seconds), 30min, 2h.")
    return limit_s


def parse_environment(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return variables by name; one without a value is inherited, and left out."""
    found: dict[str, str] = {}
    here = env.whole_environment()
    for text in texts:
        name, equals, value = text.partition("=")
        if not _VARIABLE_NAME.fullmatch(name):
            raise UsageError(
                f"{flag} {name}: a variable's name has letters, digits and '_'. Write it as "
                f"{flag} NAME=VALUE."
            )
        if name in found:
            raise UsageError(f"{flag} {name}=... is given twice: name each once.")
        if equals:
            found[name] = value
        elif name not in here:  # else the script inherits it
            raise UsageError(
                f"{flag} {name}: it is not set here. Set it, or write {flag} {name}=VALUE."
            )
    return found


def parse_dependencies(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    """Return absolute paths; raises UsageError where there is no such file."""
    for path in texts:
        if not Path(path).expanduser().exists():
            raise UsageError(f"{flag} {path}: there is no such file or folder in {Path.cwd()}.")
    return tuple(str(Path(path).expanduser().absolute()) for path in texts)


def parse_contracts(texts: Sequence[str], flag: str) -> tuple[ContractName, ...]:
    """Return the contracts of comma-separated names; raises UsageError."""
    known: tuple[ContractName, ...] = get_args(ContractName)
    found: list[ContractName] = []
    for text in ",".join(texts).split(","):
        name = next((each for each in known if each == text.strip()), None)
        if name is None:
            raise UsageError(f"{flag} {text}{choices_hint(text.strip(), known)}")
        if name not in found:
            found.append(name)
    if {"sagemaker", "sagemaker-v3"} <= set(found):
        raise UsageError(
            "--contract sagemaker and --contract sagemaker-v3: they spell the same variables "
            "differently. Give one; sagemaker has what SDK 3 adds, too."
        )
    return tuple(found)


def parse_hyperparameter(_name: str, text: str) -> Any:
    """Return a value parsed as JSON where it is JSON; otherwise the text."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    # 1.10 and 1e-3 reach the script as typed, not as 1.1 and 0.001.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number and json.dumps(value) != text else value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities are Python's, not JSON's


def hyperparameter_text(value: Any) -> str:
    """Return a hyperparameter as a flag's value: JSON where plain text is ambiguous."""
    if not isinstance(value, str):
        return json.dumps(value)
    return value if parse_hyperparameter("", value) is value else json.dumps(value)


def mode_texts(modes: Mapping[str, str]) -> list[str]:
    """Return input modes as texts: MODE for all channels, NAME=MODE for one."""
    return [f"{name}={mode}" if name else mode for name, mode in modes.items()]


def check_interval(interval: str) -> float:
    """Parse a sampling interval and return seconds; raises UsageError."""
    interval_s = parse_seconds(interval)
    if not _SHORTEST_INTERVAL_S <= interval_s <= _LONGEST_INTERVAL_S:
        raise UsageError(f"an interval of {interval}: give 100ms to 60s.")
    return interval_s


def check_metric(name: str, expression: str, where: str) -> None:
    """Raise UsageError unless a regular expression has exactly one value group."""
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise UsageError(
            f"{where} {name}: {expression!r} is no regular expression: {error}."
        ) from error
    values = compiled.groups - (STEP_GROUP in compiled.groupindex)
    if values != 1:
        raise UsageError(
            f"{where} {name}: {expression!r} has {values} groups, and one is the value: "
            r"loss: ([0-9.]+), say. A group (?P<step>...) beside it may tell the step."
        )


def parse_metric(name: str, expression: str) -> str:
    """Return a metric's regular expression; raises UsageError."""
    check_metric(name, expression, "--metric")
    return expression


def parse_sync_url(texts: Sequence[str], flag: str) -> str:
    """Return a URL that other processes can write to and read; raises UsageError."""
    url = texts[-1]
    if not url:
        raise UsageError(f"{flag} is empty: name a URL, such as s3://bucket/folder, or a folder.")
    from headrace.data.storage.urls import parse_url  # the Estimator needs no storage

    try:
        location = parse_url(url)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    if location.kind == "memory":
        raise UsageError(
            f"{flag} {location.url}: memory:// ends with the process that holds it. Name a folder, "
            "or a URL of a store."
        )
    if location.kind == "http":
        raise UsageError(
            f"{flag} {location.url}: a web server tells neither what it holds nor who was first, "
            "so nothing is kept there. Use s3://, gs://, az:// or a folder."
        )
    return url
