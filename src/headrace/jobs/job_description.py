"""The checked description of a job from an Estimator or a job file, and its command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.suggestions import choices_hint, did_you_mean
from headrace.data.channels.spec import parse_cache_limit
from headrace.jobs.job_arguments import check_arguments
from headrace.jobs.sagemaker_sdk.config import InstanceGroup, ProfilerConfig
from headrace.jobs.sagemaker_sdk.debugger import ignored_settings, read_rules
from headrace.jobs.sagemaker_sdk.distribution import (
    RanksSpec,
    distribution_notes,
    ranks_of,
    training_first,
)
from headrace.jobs.sagemaker_sdk.inputs import (
    MODES,
    FileSystemInput,
    Input,
    input_notes,
    mode_of,
    read_file_system,
)
from headrace.jobs.spec import check_metric, parse_max_run
from headrace.platforms.instance_groups import DEFAULT_GROUP, LOCAL_TYPES
from headrace.platforms.sagemaker.files import check_hyperparameters
from headrace.platforms.sagemaker.folders import check_checkpoint_path
from headrace.platforms.vertex import experiment_variables
from headrace.records.redaction import is_secret

ENGINES = ("local", "ray")
_ONLY_GROUP = "homogeneousCluster"  # SageMaker's name for the only group of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsSpec:
    """The hosts of a job.

    Attributes:
        groups: The instance groups, the training group first; empty: this host alone.
        engine: local or ray.
        address: The Ray cluster's; None: one on this machine.
        offload: The group whose hosts also make batches.
    """

    groups: tuple[InstanceGroup, ...] = ()
    engine: str = "local"
    address: str | None = None
    offload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """A job without its inputs.

    Attributes:
        entry_point: The script.
        source_dir: The code folder; None: the script's own.
        dependencies: Paths of modules and packages that the script may import.
        hyperparameters: The script's arguments, by name.
        environment: The script's variables, by name.
        contracts: The platforms whose variables and folders the script gets.
        hosts: The hosts of the job.
        ranks: How ranks are started; None: the script runs once on each host.
        max_run_s: Longest time that the job may take, in seconds.
        max_restarts: How often failed ranks are restarted.
        metrics: Regular expressions for the output of ranks, by metric name.
        input_mode: The input mode of channels that name none themselves.
        cache_dir: The folder of channels in mode Cache; None: not given.
        cache_limit: Largest size of a channel cache; None: what the disk holds.
        checkpoint_uri: Where checkpoints are synced to; None: only the run folder.
        checkpoint_local_path: A further path where the script finds its checkpoints; None: none.
        output_path: Where the script's output is uploaded; None: only the run folder.
        profiler: How the job is recorded; None: the defaults.
        is_recorded: Whether the job is recorded at all.
        job_name: The run's name; None: made of the script's name and the time.
        asked: All arguments as they were given.
        notes: Where the job differs from what the arguments ask for.
    """

    entry_point: str
    source_dir: str | None
    dependencies: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    environment: Mapping[str, str]
    contracts: tuple[str, ...]
    hosts: HostsSpec
    ranks: RanksSpec | None
    max_run_s: float | None
    max_restarts: int
    metrics: Mapping[str, str]
    input_mode: str | None
    cache_dir: str | None
    cache_limit: str | None
    checkpoint_uri: str | None
    checkpoint_local_path: str | None
    output_path: str | None
    profiler: ProfilerConfig | None
    is_recorded: bool
    job_name: str | None
    asked: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def describe(given: Mapping[str, Any], where: str, more: Sequence[str] = ()) -> JobDescription:
    """Return the job that Estimator arguments describe.

    Args:
        given: The arguments, by name.
        where: Prefix of error messages: who gave the arguments.
        more: Names of further allowed arguments, which are left out.

    Raises:
        UsageError: An unknown argument, or an invalid value.
    """
    asked = check_arguments(given, where, more)
    if "entry_point" not in asked:
        raise UsageError(f"{where}entry_point is missing: name the script.")
    if "rules" in asked:
        asked["rules"] = read_rules(asked["rules"], where)
    profiler = _profiler(asked.get("profiler_config"), where)
    check_hyperparameters(asked.get("hyperparameters", {}))
    contracts = _contracts(asked.get("contract", "sagemaker"))
    ranks = ranks_of(asked.get("distribution", {}), where)
    return JobDescription(
        entry_point=asked["entry_point"],
        source_dir=asked.get("source_dir"),
        dependencies=tuple(asked.get("dependencies", ())),
        hyperparameters=dict(asked.get("hyperparameters", {})),
        environment=dict(asked.get("environment", {})),
        contracts=contracts,
        hosts=_hosts(asked, ranks, where),
        ranks=ranks,
        max_run_s=_max_run(asked.get("max_run"), where),
        max_restarts=asked.get("max_restarts", 0),
        metrics=_metrics(asked.get("metric_definitions", ()), where),
        input_mode=_choice(asked.get("input_mode"), MODES, f"{where}input_mode"),
        cache_dir=_cache_dir(asked.get("cache_dir"), where),
        cache_limit=_cache_limit(asked.get("cache_limit"), where),
        checkpoint_uri=_either(asked, "checkpoint_uri", "checkpoint_s3_uri", where),
        checkpoint_local_path=_checkpoint_local_path(asked, contracts, where),
        output_path=asked.get("output_path"),
        profiler=profiler,
        is_recorded=not asked.get("disable_profiler", profiler and profiler.disable_profiler),
        job_name=asked.get("job_name"),
        asked=asked,
        notes=(*_notes(asked), *_debugger_notes(asked, profiler)),
    )


def _contracts(contracts: str | Sequence[str]) -> tuple[str, ...]:
    names = contracts.split(",") if isinstance(contracts, str) else contracts
    return tuple(name.strip() for name in names)  # checked by `--contract`


def _hosts(asked: Mapping[str, Any], ranks: RanksSpec | None, where: str) -> HostsSpec:
    engine = _choice(asked.get("engine", "local"), ENGINES, f"{where}engine") or "local"
    address = asked.get("address")
    if address is not None and engine != "ray":
        raise UsageError(f'{where}address {address}: it is a Ray cluster\'s: add engine="ray".')
    groups = _groups(asked, engine, where)
    return HostsSpec(
        groups=training_first(groups, ranks, asked.get("offload"), where),
        engine=engine,
        address=address,
        offload=asked.get("offload"),
    )


def _groups(asked: Mapping[str, Any], engine: str, where: str) -> list[InstanceGroup]:
    groups_given = asked.get("instance_groups")
    if groups_given is not None:
        for name in ("instance_count", "instance_type"):
            if name in asked:
                raise UsageError(f"{where}{name} and instance_groups: give one of them.")
        groups = [_group(each, where) for each in groups_given]
        names = [group.name for group in groups]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"{where}instance_groups: {name} comes twice; name each once.")
        return groups
    count, kind = asked.get("instance_count", 1), asked.get("instance_type", LOCAL_TYPES[0])
    contracts = _contracts(asked.get("contract", "sagemaker"))
    is_sagemaker = engine == "local" and any(each.startswith("sagemaker") for each in contracts)
    only = InstanceGroup(_ONLY_GROUP if is_sagemaker else DEFAULT_GROUP, kind, count)
    return [] if engine == "local" and count == 1 and kind in LOCAL_TYPES else [only]


def _group(given: object, where: str) -> InstanceGroup:
    if isinstance(given, InstanceGroup):
        return given
    known = ("name", "type", "count", "instance_group_name", "instance_type", "instance_count")
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{where}instance_groups: {given!r} is no InstanceGroup: name, type and count."
        )
    for name in given:
        if name not in known:
            meant = did_you_mean(str(name), known)
            raise UsageError(f"{where}instance_groups: a group has no {name}.{meant}")
    return InstanceGroup(**given)


def _max_run(value: float | str | None, where: str) -> float | None:
    try:
        return None if value is None else parse_max_run(str(value))
    except UsageError:
        raise UsageError(
            f"{where}max_run: {value!r} is no time: a number of seconds, or a text such as 2h."
        ) from None


def _cache_dir(value: str | FileSystemInput | Mapping[str, Any] | None, where: str) -> str | None:
    if isinstance(value, Mapping):
        value = read_file_system(value, f"{where}cache_dir")
    if not isinstance(value, FileSystemInput):
        return value
    if value.file_system_access_mode != "rw":
        raise UsageError(
            f"{where}cache_dir: what is cached is written there: say "
            'file_system_access_mode="rw" of the FileSystemInput.'
        )
    return value.directory_path


def _cache_limit(value: int | str | None, where: str) -> str | None:
    if value is None:
        return None
    _ = parse_cache_limit(str(value), f"{where}cache_limit")  # raises where it is no size
    return str(value)


def _checkpoint_local_path(
    asked: Mapping[str, Any], contracts: Sequence[str], where: str
) -> str | None:
    path = asked.get("checkpoint_local_path")
    if path is None:
        return None
    return check_checkpoint_path(path, contracts, f"{where}checkpoint_local_path")


def _metrics(definitions: Sequence[Any], where: str) -> dict[str, str]:
    found = {}
    for each in definitions:
        is_valid = isinstance(each, Mapping) and set(each) == {"Name", "Regex"}
        if not is_valid or not all(isinstance(value, str) for value in each.values()):
            raise UsageError(
                f"{where}metric_definitions: {each!r}: write each as "
                '{"Name": "loss", "Regex": "loss: ([0-9.]+)"}.'
            )
        if "=" in each["Name"] or each["Name"] in found:
            raise UsageError(f"{where}metric_definitions: {each['Name']}: name each once, no '='.")
        check_metric(each["Name"], each["Regex"], f"{where}metric_definitions:")
        found[each["Name"]] = each["Regex"]
    return found


def _profiler(given: object, where: str) -> ProfilerConfig | None:
    if not isinstance(given, Mapping):
        return given if isinstance(given, ProfilerConfig) else None
    known = list(ProfilerConfig.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise UsageError(f"{where}profiler_config: {name}{choices_hint(str(name), known)}")
    return ProfilerConfig(**given)


def _debugger_notes(asked: Mapping[str, Any], profiler: ProfilerConfig | None) -> list[str]:
    others = [name for name in ("debugger_hook_config", "tensorboard_output_config")
              if asked.get(name, False)]  # fmt: skip
    if profiler is not None and profiler.profile_params is not None:
        others.append("profile_params")
    return ignored_settings(
        rules=asked.get("rules", ()),
        profile=profiler and profiler.framework_profile_params,
        s3_output_path=profiler and profiler.s3_output_path,
        others=others,
    )


def _either(asked: Mapping[str, Any], name: str, sagemakers: str, where: str) -> str | None:
    if name in asked and sagemakers in asked:
        raise UsageError(f"{where}{name} and {sagemakers} mean the same: give one of them.")
    found: str | None = asked.get(name, asked.get(sagemakers))
    return found


def _choice(value: str | None, known: Sequence[str], where: str) -> str | None:
    if value is not None and value not in known:
        raise UsageError(f"{where} {value}{choices_hint(value, known)}")
    return value


def _notes(asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where this host differs from what was asked for; the job runs all the same."""
    notes = distribution_notes(asked.get("distribution", {}))
    wanted = asked.get("framework_version")
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        installed = "none"
    if wanted is not None and not _has_version_prefix(installed, wanted.split(".")):
        notes.append(f"framework_version {wanted} is asked for, and torch {installed} is installed")
    python = asked.get("py_version")
    if python is not None:
        digits = python.removeprefix("py").replace(".", "")
        if not _has_version_prefix(python_version(), [digits[:1], digits[1:]]):
            notes.append(f"py_version {python} is asked for, and this is Python {python_version()}")
    if "image_uri" in asked:
        notes.append("image_uri: the job runs with what is installed here, in no container")
    return tuple(notes)


def _has_version_prefix(version: str, parts: Sequence[str]) -> bool:
    have = version.partition("+")[0].split(".")
    return have[: len(parts)] == [part for part in parts if part] or have == list(parts)


def run_stem(given: Mapping[str, Any]) -> str:
    """Return the beginning of a run's name where none is given."""
    return str(given.get("base_job_name") or Path(given["entry_point"]).stem)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """The `headrace run` command line of a job.

    Attributes:
        flags: What follows `headrace run`, before the script.
        script: The script.
        variables: Variables of that process: secrets that no command line should show.
        asked: The arguments of the job, JSON.
        notes: Where the job differs from what the arguments ask for.
    """

    flags: tuple[str, ...]
    script: str
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: str = "{}"
    notes: tuple[str, ...] = ()


def build_run_command(
    job: JobDescription, inputs: Mapping[str, Input], where: str = ""
) -> RunCommand:
    """Return the command line that starts a job.

    Args:
        job: The job.
        inputs: Its channels.
        where: Prefix of error messages: who gave the arguments.

    Raises:
        UsageError: A channel in mode Cache without a cache folder.
    """
    _check_cache_dir(job, inputs, where)
    secret = {name: value for name, value in job.environment.items() if is_secret(name)}
    flags = [*_host_flags(job), *_script_flags(job), *_input_flags(job, inputs), *_run_flags(job)]
    flags += [
        f"--environment={name}" if name in secret else f"--environment={name}={value}"
        for name, value in job.environment.items()
    ]
    flags += [f"--environment={name}={value}" for name, value in _experiment_variables(job).items()]
    notes = (*job.notes, *input_notes(inputs))
    asked = {**job.asked, "inputs": dict(inputs), "notes": list(notes)}
    return RunCommand(
        flags=tuple(flags),
        script=job.entry_point,
        variables=secret,
        asked=json.dumps({name: value for name, value in asked.items() if value}, default=as_json),
        notes=notes,
    )


def _host_flags(job: JobDescription) -> list[str]:
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


def _script_flags(job: JobDescription) -> list[str]:
    flags = [f"--contract={','.join(job.contracts)}"]
    if job.source_dir is not None:
        flags.append(f"--source-dir={job.source_dir}")
    flags += [f"--dependency={path}" for path in job.dependencies]
    flags += [
        f"--hyperparameter={name}={_hyperparameter_text(each)}"
        for name, each in job.hyperparameters.items()
    ]
    return flags


def _experiment_variables(job: JobDescription) -> dict[str, str]:
    """Return the Vertex AI variables for SageMaker's `experiment_config`."""
    config = job.asked.get("experiment_config") or {}
    experiment = config.get("ExperimentName")
    if not experiment or "vertex" not in job.contracts:
        return {}
    found = experiment_variables(experiment, config.get("RunName") or config.get("TrialName"))
    return {name: value for name, value in found.items() if name not in job.environment}


def _input_flags(job: JobDescription, inputs: Mapping[str, Input]) -> list[str]:
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


def _check_cache_dir(job: JobDescription, inputs: Mapping[str, Input], where: str) -> None:
    for name, value in inputs.items():
        if mode_of(value, job.input_mode) == "Cache" and job.cache_dir is None:
            raise UsageError(
                f"{where}inputs: {name}: in mode Cache it lies in a folder of your choice. Name "
                'one: cache_dir="/fsx/cache".'
            )


def _run_flags(job: JobDescription) -> list[str]:
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


def _hyperparameter_text(value: Any) -> str:
    """Return a hyperparameter in the command line's form: JSON where plain text is ambiguous."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)  # a text that would otherwise be read as a number, say


def as_json(value: object) -> object:
    """Return a value JSON can hold; for other objects, such as a session, the type's name."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return f"<{type(value).__name__}>"
