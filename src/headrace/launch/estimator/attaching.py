"""What an Estimator knows of a job that another process started: what run.json was told of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from headrace.core.errors import UsageError
from headrace.launch.estimator.job_description import describe
from headrace.launch.estimator.lowering import lower
from headrace.launch.estimator.started_run import StartedRun
from headrace.launch.estimator.training_inputs import Input, named_inputs
from headrace.records.redaction import HIDDEN
from headrace.records.run_folder import Attempt

_OF_FIT = ("inputs", "notes", "experiment_config", "profiler_updates")
_CHOSEN = ("--run-dir=", "--name=")
_Made = TypeVar("_Made")
_Told = ParamSpec("_Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job, as its run's folder tells it.

    Attributes:
        given: The arguments of an Estimator of it.
        inputs: Its channels, by their names.
        experiment_config: SageMaker's; None: there was none.
        folder: Where it was started: its paths begin there; None: in the folder of whoever asks.
        lacks: Why an Estimator of it cannot start it again; None: it can.
    """

    given: Mapping[str, Any]
    inputs: Mapping[str, Input] = field(default_factory=dict)
    experiment_config: Mapping[str, str] | None = None
    folder: Path | None = None
    lacks: str | None = None


def recorded_job(run: StartedRun) -> RecordedJob:
    """Return the job of a run.

    Raises:
        UsageError: Nothing of it ever began.
    """
    attempt = run.attempt
    if attempt is None or not attempt.argv:
        raise UsageError(f"{run.path} tells of no attempt: there is nothing to attach to.")
    asked = attempt.asked
    script = {"entry_point": attempt.argv[0]}
    if "entry_point" not in asked:
        return RecordedJob(given=script, lacks="it was started from a command line")
    given = {name: value for name, value in asked.items() if name not in _OF_FIT}
    try:
        job = describe(given, "")
        inputs = named_inputs(asked.get("inputs"), "")
        words = {*lower(job, inputs).flags, job.entry_point}
    except UsageError as error:
        return RecordedJob(given=script, lacks=f"what it was asked for cannot be read: {error}")
    return RecordedJob(
        given=given,
        inputs=inputs,
        experiment_config=asked.get("experiment_config"),
        folder=Path(attempt.folder) if attempt.folder else None,
        lacks=_lacks(attempt, words),
    )


def _lacks(attempt: Attempt, words: set[str]) -> str | None:
    if attempt.hides_secrets or HIDDEN in json.dumps(attempt.asked):
        return "it was given a secret, which was not written down"
    more = [each for each in attempt.command[2:]
            if each not in words and not each.startswith(_CHOSEN)]  # fmt: skip
    return f"its command line had more to say: {shlex.join(more)}" if more else None


class OfClassAndInstance(Generic[_Made, _Told]):
    """A method that is called on a class, or on one of its instances: it gets which of them.

    Args:
        function: The method.
    """

    def __init__(self, function: Callable[Concatenate[Any, _Told], _Made]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: object | None, owner: type) -> Callable[_Told, _Made]:
        return MethodType(self._function, owner if instance is None else instance)
