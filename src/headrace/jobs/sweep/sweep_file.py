"""A sweep file: a job file with a table `sweep`, as the jobs that it stands for.

    entry_point = "train.py"

    [hyperparameters]
    epochs = 3

    [sweep.grid]                           # every combination is a run
    input_mode = ["File", "FastFile"]
    hyperparameters.workers = [2, 4]

Instead of a grid, each table `[[sweep.runs]]` is a run: a `name` and the keys that differ from the
rest of the file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError, check_choices
from headrace.jobs.job_file import INPUTS, is_job_file, read_job_file
from headrace.jobs.job_request import JobRequest, as_json, request_job
from headrace.jobs.sagemaker_sdk.inputs import named_inputs
from headrace.records.redaction import HIDDEN, hide_secrets, is_secret, redact_text, shown_value
from headrace.records.run_folder import is_plain_name

_SWEEP, _GRID, _RUNS, _NAME = "sweep", "grid", "runs", "name"
_KEYS = ("name", "experiment", "grid", "runs", "max_concurrent")
_LONGEST_NAME = 120  # characters, where file systems allow 255 bytes
_HASH_CHARS = 8
_DIGEST_ROUNDS = 100_000  # 50 ms for each secret value that a sweep varies
_MOST_RUNS = 10_000
_NAMES = ("hyperparameters", "environment")  # tables of names that may have dots
_CHECKPOINT_KEYS, _OUTPUT_KEY = ("checkpoint_uri", "checkpoint_s3_uri"), "output_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A run of a sweep.

    Attributes:
        name: The run's, which begins with the sweep's.
        request: Its job.
        changes: What differs from the rest of the file, as texts by dotted name; secrets hidden.
        hidden_changes: Digests of those of these values in which something is hidden.
    """

    name: str
    request: JobRequest
    changes: Mapping[str, str]
    hidden_changes: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A digest of all arguments of the job but secrets that are not what the sweep varies."""
        known: object = hide_secrets(_plain_json(self.request.arguments))
        if self.hidden_changes:
            known = [known, dict(self.hidden_changes)]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep.

    Attributes:
        name: Of the folder with its state and its comparison, below the runs folder.
        experiment: In MLflow.
        runs: In the order in which they run; others are compared with the first.
        max_concurrent: How many run at the same time.
    """

    name: str
    experiment: str
    runs: tuple[SweepRun, ...]
    max_concurrent: int = 1


def read_sweep(file: Path) -> Sweep:
    """Return the sweep that a file describes.

    Raises UsageError (the file cannot be read; an unknown key, an empty grid, an invalid value of
    any of its runs, each named).
    """
    if not is_job_file(str(file)):
        raise UsageError(f"{file}: a sweep is a job file, TOML or YAML, with a table {_SWEEP}.")
    given = dict(read_job_file(file))
    table = given.pop(_SWEEP, None)
    where = f"{file}: "
    if not isinstance(table, Mapping):
        raise UsageError(
            f"{where}it has no table [{_SWEEP}.{_GRID}] with lists of values to combine, and no "
            f"[[{_SWEEP}.{_RUNS}]]. headrace run {file} runs it as one job."
        )
    check_choices(list(table), _KEYS, f"{where}{_SWEEP}: ")
    if "job_name" in given:
        raise UsageError(f"{where}job_name: a sweep names its runs itself: {_SWEEP}.{_NAME}.")
    name = _text(table, _NAME, file.stem, where)
    if not is_plain_name(name):
        raise UsageError(f"{where}{_SWEEP}.{_NAME} {name!r} is no plain folder name, such as base.")
    max_concurrent = _max_concurrent(table, given, where)
    runs = tuple(_runs(given, _changes(table, where), name, where))
    experiment = _text(table, "experiment", name, where)
    return Sweep(name=name, experiment=experiment, runs=runs, max_concurrent=max_concurrent)


def _text(table: Mapping[str, Any], key: str, default: str, where: str) -> str:
    found = table.get(key, default)
    if not isinstance(found, str) or not found:
        raise UsageError(f"{where}{_SWEEP}.{key}: {found!r} is not a text.")
    return found


def _max_concurrent(table: Mapping[str, Any], given: Mapping[str, Any], where: str) -> int:
    found = table.get("max_concurrent", 1)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise UsageError(
            f"{where}{_SWEEP}.max_concurrent: {found!r} is not a whole number, 1 or more."
        )
    if found > 1 and given.get("engine") != "ray":
        raise UsageError(
            f"{where}{_SWEEP}.max_concurrent {found}: runs at the same time on one host slow each "
            'other down. On a Ray cluster they have hosts of their own: engine = "ray".'
        )
    return found


_Path = tuple[str, ...]
"""The place of a value in a job file: its key, in the tables around it."""
_Change = tuple[str, Mapping[_Path, Any]]
"""The name of a run, "" if it has none, and the values that differ."""


def _changes(table: Mapping[str, Any], where: str) -> list[_Change]:
    """Return what differs in each run."""
    if _GRID in table and _RUNS in table:
        raise UsageError(f"{where}{_SWEEP}: {_GRID} and {_RUNS}: give one of them.")
    if _RUNS in table:
        return list(_listed(table[_RUNS], where))
    grid = table.get(_GRID, {})
    if not isinstance(grid, Mapping):
        raise UsageError(
            f"{where}{_SWEEP}.{_GRID}: {shown_value(grid)} is no table of lists, such as "
            f'[{_SWEEP}.{_GRID}] and below it input_mode = ["File", "FastFile"].'
        )
    axes = _distinct(grid, f"{where}{_SWEEP}.{_GRID}")
    if not axes:
        raise UsageError(
            f"{where}{_SWEEP}.{_GRID} is empty: give lists of values, such as input_mode = "
            '["File", "FastFile"].'
        )
    for path, values in axes.items():
        _check_axis(path, values, f"{where}{_SWEEP}.{_GRID}.{_dotted(path)}")
    count = math.prod(map(len, axes.values()))
    if count > _MOST_RUNS:
        raise UsageError(
            f"{where}{_SWEEP}.{_GRID} has {count:,} combinations, over {_MOST_RUNS:,}."
        )
    combined = itertools.product(*axes.values())
    return [("", dict(zip(axes, values, strict=True))) for values in combined]


def _check_axis(path: _Path, values: object, where: str) -> None:
    """Raise UsageError where a grid has no list of different values."""
    if not isinstance(values, list) or not values:
        raise UsageError(
            f"{where}: {shown_value(values, path[-1])}: give a list of the values to try."
        )
    texts = [_value_text(value) for value in values]
    twice = [value for value, text in zip(values, texts, strict=True) if texts.count(text) > 1]
    if twice:
        raise UsageError(f"{where}: {_shown(path, twice[0])} is there twice.")


def _leaves(table: object, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield the values of a table and of those in it; a key may name both: "inputs.train"."""
    if not isinstance(table, Mapping) or (path and not table):
        yield path, table
        return
    for key, value in table.items():
        parts = [str(key)]
        if not path:
            has_names = str(key).partition(".")[0] in _NAMES
            parts = str(key).split(".", 1 if has_names else -1)
        yield from _leaves(value, (*path, *parts))


def _distinct(table: object, where: str) -> dict[_Path, Any]:
    """Return the values of a table by their place; raises UsageError where one is there twice."""
    found: dict[_Path, Any] = {}
    for path, value in _leaves(table):
        if path in found:
            raise UsageError(f"{where}: {_dotted(path)} is there twice.")
        found[path] = value
    return found


def _listed(runs: object, where: str) -> Iterator[_Change]:
    if not isinstance(runs, list) or not runs:
        raise UsageError(f"{where}{_SWEEP}.{_RUNS}: give a table for each: [[{_SWEEP}.{_RUNS}]].")
    for place, run in enumerate(runs, start=1):
        if not isinstance(run, Mapping):
            raise UsageError(f"{where}{_SWEEP}.{_RUNS} {place}: {shown_value(run)} is no table.")
        name = run.get(_NAME, "")
        if not isinstance(name, str):
            raise UsageError(f"{where}{_SWEEP}.{_RUNS} {place}: name {name!r} is no text.")
        own = {key: each for key, each in run.items() if key != _NAME}
        changed = _distinct(own, f"{where}{_SWEEP}.{_RUNS} {place}")
        if ("job_name",) in changed:
            raise UsageError(f"{where}{_SWEEP}.{_RUNS} {place}: job_name: write it as name.")
        yield name, changed


def _runs(
    given: Mapping[str, Any], changes: Sequence[_Change], sweep: str, where: str
) -> Iterator[SweepRun]:
    """Yield the runs; raises UsageError where a job is invalid, or two have one name."""
    taken: set[str] = set()
    for place, (label, changed) in enumerate(changes, start=1):
        name = _short(f"{sweep}-{_plain(label) or _grid_label(changed) or place}")
        if name in taken and label:
            raise UsageError(f"{where}{_SWEEP}.{_RUNS}: two runs would be called {name}.")
        while name in taken:
            name = _short(f"{name}-{place}")
        taken.add(name)
        job = _with_own_places(_with_changes(given, changed, where), changed, name)
        inputs = named_inputs(job.get(INPUTS), where)
        request = request_job(job, inputs, f"{where}run {name}: ", more=(INPUTS,))
        texts = {_dotted(path): _shown(path, value) for path, value in changed.items()}
        yield SweepRun(
            name=name, request=request, changes=texts, hidden_changes=_hidden_changes(job, changed)
        )


def _with_changes(
    given: Mapping[str, Any], changed: Mapping[_Path, Any], where: str
) -> dict[str, Any]:
    """Return the keys of a job with some of them changed."""
    job: dict[str, Any] = deepcopy(dict(given))
    for path, value in changed.items():
        at = job
        if len(path) > 1 and not isinstance(job.get(path[0], {}), dict):
            raise UsageError(
                f"{where}{_SWEEP}: {_dotted(path)}: {path[0]} is no table in this file, so nothing "
                "in it can be changed: write it as one there."
            )
        for key in path[:-1]:
            if not isinstance(at.get(key), dict):
                at[key] = {}  # a text that stands for the table's only value, such as a channel's
            at = at[key]
        at[path[-1]] = deepcopy(value)  # of a grid, it is of several runs
    return job


def _with_own_places(
    job: Mapping[str, Any], changed: Mapping[_Path, Any], run: str
) -> dict[str, Any]:
    """Return the keys of a job with a folder of the run's own below URLs that all runs have.

    Checkpoints at one URL are one job's: each run would go on from those of the run before it. So
    are outputs under Vertex AI's contract; SageMaker's have the run's name below the URL anyway.
    What the sweep varies is as it is given.
    """
    is_vertex = "vertex" in str(job.get("contract"))  # a text, or a list of them
    keys = (*_CHECKPOINT_KEYS, *([_OUTPUT_KEY] if is_vertex else ()))
    shared = {
        key: url
        for key in keys
        if isinstance(url := job.get(key), str) and url and (key,) not in changed
    }
    return {**job, **{key: f"{url.rstrip('/')}/{run}" for key, url in shared.items()}}


def _grid_label(changed: Mapping[_Path, Any]) -> str:
    """Return a run's name of its values: a text is itself, a number follows its key."""
    labels = (
        _plain(_label(path[-1], value))
        for path, value in changed.items()
        if not _is_secret(path, value)
    )
    return "-".join(filter(None, labels))


def _label(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return key if value else f"no-{key}"
    return f"{key}{value}" if isinstance(value, int | float) else ""


def _plain(text: str) -> str:
    """Return a text as a part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._+=-]+", "-", text).strip("-.")


def _short(name: str) -> str:
    """Return a run's name, cut if it is too long for a folder's; a hash keeps it distinct."""
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]
    return f"{name[: _LONGEST_NAME - _HASH_CHARS - 1]}-{digest}"


def _shown(path: _Path, value: object) -> str:
    """Return a value as it is shown, and kept on disk: without secrets."""
    return HIDDEN if _is_secret(path, value) else _value_text(value)


def _is_secret(path: _Path, value: object) -> bool:
    text = _value_text(value)
    return any(is_secret(key, text) for key in path) or redact_text(text) != text


def _hidden_changes(job: Mapping[str, Any], changed: Iterable[_Path]) -> dict[str, str]:
    """Return digests of the changed values of a job of which something is hidden."""
    plain = _plain_json(job)
    hidden = hide_secrets(plain)
    texts = {path: _text_at(plain, path) for path in changed}
    return {
        _dotted(path): _digest_of_secret(_dotted(path), text)
        for path, text in texts.items()
        if text != _text_at(hidden, path)
    }


def _text_at(table: Any, path: _Path) -> str:
    for key in path:
        table = table[key]
    return json.dumps(table)


@cache
def _digest_of_secret(name: str, text: str) -> str:
    """Return a digest from which not even a short secret is found by trying."""
    key = hashlib.pbkdf2_hmac("sha256", text.encode(), name.encode(), _DIGEST_ROUNDS)
    return key.hex()


def _plain_json(value: object) -> Any:
    return json.loads(json.dumps(value, default=as_json))


def _dotted(path: _Path) -> str:
    return ".".join(path)


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
