"""The settings of a job as texts by name, by which runs are compared and found again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.records.run_folder import Attempt

_HYPERPARAMETER_FLAG = "--hyperparameter"
_ELSEWHERE = frozenset({
    "entry_point", "hyperparameters", "args",  # see `attempt_params`
    "job_name", "notes", "profiler_updates", "rules", "experiment_config",
})  # fmt: skip
"""Of a job request, what is no setting, or is shown in another way."""
_NESTED = frozenset({"environment", "inputs"})  # values by name


def flag_values(flags: Sequence[str], name: str) -> list[str]:
    """Return the values of a flag of ours, written as `--name value` or `--name=value`."""
    found = []
    for flag, following in zip(flags, (*flags, "")[1:], strict=True):
        written, equals, value = flag.partition("=")
        if written == name:
            found.append(value if equals else following)
    return found


def attempt_flags(attempt: Attempt) -> tuple[str, ...]:
    """Return what an attempt's command line has before the script."""
    return attempt.command[: -len(attempt.argv) or None]


def attempt_params(attempt: Attempt) -> dict[str, str]:
    """Return the arguments of an attempt's script as params, hyperparameters among them."""
    given = flag_values(attempt_flags(attempt), _HYPERPARAMETER_FLAG)
    hyperparameters = dict(text.partition("=")[::2] for text in given)
    return {**hyperparameters, **script_params(attempt.argv[1:])}


def script_params(words: Sequence[str]) -> dict[str, str]:
    """Return a script's arguments as params: `--lr 0.1` and `--lr=0.1` are lr; others by place.

    A flag without a value is "true"; of values after one flag all count, with spaces between.
    """
    found: dict[str, str] = {}
    name, place = "", 0
    for word in words:
        if word.startswith("-") and not _is_number(word) and word.strip("-"):
            name, has_value, value = word.lstrip("-").partition("=")
            found[name] = value if has_value else "true"
            name = "" if has_value else name
        elif name:
            found[name] = word if found[name] == "true" else f"{found[name]} {word}"
        else:
            found[str(place)] = word
            place += 1
    return found


def request_settings(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments of a job file or an Estimator, but for the script's own.

    Channels and variables have a setting each, such as `inputs.train`.
    """
    return dict(_settings(asked))


def _settings(asked: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in asked.items():
        if name in _ELSEWHERE:
            continue
        if name in _NESTED and isinstance(value, Mapping):
            for inner, each in value.items():
                yield f"{name}.{inner}", _text(each)
        else:
            yield name, _text(value)


def _text(value: object) -> str:
    if isinstance(value, Mapping):  # what was not given says nothing
        value = {name: each for name, each in value.items() if each is not None}
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
