"""From a description of a job to the command line that starts it: `headrace run ...`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from typing import Any

from headrace.contracts.vertex_variables import experiment_variables
from headrace.core.errors import UsageError
from headrace.launch.estimator.job_description import JobDescription
from headrace.launch.estimator.training_inputs import Input, input_notes, mode_of
from headrace.records.redaction import is_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """How a job is started.

    Attributes:
        flags: What follows `headrace run`, before the script.
        script: The script.
        variables: Of that process: those of the script that no command line should show.
        asked: What the job was asked for, JSON.
        notes: What of it is otherwise here.
    """

    flags: tuple[str, ...]
    script: str
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: str = "{}"
    notes: tuple[str, ...] = ()


def lower(job: JobDescription, inputs: Mapping[str, Input], where: str = "") -> Lowered:
    """Return how a job is started.

    Args:
        job: What is to run.
        inputs: Its channels.
        where: Who asks, as a message begins.

    Raises:
        UsageError: A channel in mode Cache, and no folder for it.
    """
    _check_cached(job, inputs, where)
    secret = {name: value for name, value in job.environment.items() if is_secret(name)}
    flags = [*_of_hosts(job), *_of_script(job), *_of_inputs(job, inputs), *_of_run(job)]
    flags += [
        f"--environment={name}" if name in secret else f"--environment={name}={value}"
        for name, value in job.environment.items()
    ]
    flags += [f"--environment={name}={value}" for name, value in _of_experiment(job).items()]
    notes = (*job.notes, *input_notes(inputs))
    asked = {**job.asked, "inputs": dict(inputs), "notes": list(notes)}
    return Lowered(
        flags=tuple(flags),
        script=job.entry_point,
        variables=secret,
        asked=json.dumps({name: value for name, value in asked.items() if value}, default=as_json),
        notes=notes,
    )


def _of_hosts(job: JobDescription) -> list[str]:
    hosts = job.hosts
    flags = [f"--group={group.flag()}" for group in hosts.groups]
    if hosts.engine != "local":
        flags.append(f"--engine={hosts.engine}")
    if hosts.address is not None:
        flags.append(f"--address={hosts.address}")
    if hosts.offload is not None:
        flags.append(f"--offload={hosts.offload}")
    if job.ranks is not None:
        flags.append(f"--distribution={job.ranks.distribution}")
        if job.ranks.per_host is not None:
            flags.append(f"--nproc-per-node={job.ranks.per_host}")
    return flags


def _of_script(job: JobDescription) -> list[str]:
    flags = [f"--contract={','.join(job.contracts)}"]
    if job.source_dir is not None:
        flags.append(f"--source-dir={job.source_dir}")
    flags += [f"--dependency={path}" for path in job.dependencies]
    flags += [
        f"--hyperparameter={name}={_value(each)}" for name, each in job.hyperparameters.items()
    ]
    return flags


def _of_experiment(job: JobDescription) -> dict[str, str]:
    """Return what a script of Vertex AI's is told of SageMaker's `experiment_config`."""
    told = job.asked.get("experiment_config") or {}
    experiment = told.get("ExperimentName")
    if not experiment or "vertex" not in job.contracts:
        return {}
    found = experiment_variables(experiment, told.get("RunName") or told.get("TrialName"))
    return {name: value for name, value in found.items() if name not in job.environment}


def _of_inputs(job: JobDescription, inputs: Mapping[str, Input]) -> list[str]:
    flags = []
    for name, value in inputs.items():
        flags.append(f"--channel={name}={value if isinstance(value, str) else value.channel()}")
        mode = mode_of(value, job.input_mode)
        if mode is not None:
            flags.append(f"--input-mode={name}={mode}")
    if job.cache_dir is not None:
        flags.append(f"--cache-dir={job.cache_dir}")
    if job.cache_limit is not None:
        flags.append(f"--cache-limit={job.cache_limit}")
    return flags


def _check_cached(job: JobDescription, inputs: Mapping[str, Input], where: str) -> None:
    for name, value in inputs.items():
        if mode_of(value, job.input_mode) == "Cache" and job.cache_dir is None:
            raise UsageError(
                f"{where}inputs: {name}: in mode Cache it lies in a folder of your choice. Name "
                'one: cache_dir="/fsx/cache".'
            )


def _of_run(job: JobDescription) -> list[str]:
    flags = [f"--metric={name}={expression}" for name, expression in job.metrics.items()]
    if job.max_run_s is not None:
        flags.append(f"--max-run={job.max_run_s:g}")
    if job.max_restarts:
        flags.append(f"--max-restarts={job.max_restarts}")
    if job.checkpoint_uri is not None:
        flags.append(f"--checkpoint-uri={job.checkpoint_uri}")
    if job.checkpoint_local_path is not None:
        flags.append(f"--checkpoint-local-path={job.checkpoint_local_path}")
    if job.output_path is not None:
        flags.append(f"--output-path={job.output_path}")
    if not job.is_recorded:
        return [*flags, "--profile=off"]
    return flags + (job.profiler.flags() if job.profiler is not None else [])


def _value(value: Any) -> str:
    """Return a hyperparameter as the command line reads it: JSON where that is needed."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)  # a text that would be read as something else


def as_json(value: object) -> object:
    """Return anything as JSON may hold it: of a session, say, that it was one."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return f"<{type(value).__name__}>"
