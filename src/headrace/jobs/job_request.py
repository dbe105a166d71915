"""The job that an Estimator or a job file asks for, as options of a `JobSpec`.

Its arguments are the options of a job (jobs/spec.py) and what SageMaker's SDK calls otherwise:
inputs, instance groups, distribution, metric definitions, profiler configuration. Some of
SageMaker's arguments, such as a role, have no meaning here; they are accepted and recorded, so that
a launch script only needs another import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from functools import partial
from importlib import metadata
from platform import python_version
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError, check_choices, did_you_mean
from headrace.data.channels.spec import parse_cache_limit
from headrace.jobs.options import (
    Texts,
    argument_texts,
    check_metric,
    check_variable_name,
    hyperparameter_text,
    is_list,
    parse_max_run,
)
from headrace.jobs.sagemaker_sdk.config import (
    InstanceGroup,
    ProfilerConfig,
    distribution_notes,
    is_whole_number,
    ranks_of,
    training_first,
)
from headrace.jobs.sagemaker_sdk.debugger import ignored_settings, read_rules
from headrace.jobs.sagemaker_sdk.inputs import (
    MODES,
    FileSystemInput,
    Input,
    input_notes,
    mode_of,
    read_file_system,
)
from headrace.jobs.spec import ENGINES, job_options
from headrace.platforms.instance_groups import DEFAULT_GROUP, LOCAL_TYPES, ONLY_GROUP
from headrace.platforms.sagemaker import check_checkpoint_path, check_hyperparameters
from headrace.platforms.vertex import experiment_variables
from headrace.records.redaction import is_secret, shown_value

_RECORDED_ONLY = (
    "role", "image_uri", "sagemaker_session", "volume_size", "volume_kms_key", "output_kms_key",
    "tags", "subnets", "security_group_ids", "rules", "debugger_hook_config",
    "tensorboard_output_config", "code_location", "use_spot_instances", "max_wait",
    "max_retry_attempts", "keep_alive_period_in_seconds", "encrypt_inter_container_traffic",
    "enable_network_isolation", "enable_sagemaker_metrics", "container_log_level",
)  # fmt: skip
"""SageMaker's arguments without a meaning here, or that name what is recorded with the run."""
_UNSUPPORTED = {
    "git_config": "nothing is cloned here. Run `git clone --branch BRANCH URL` yourself, and name "
    "the folder of the code in it: source_dir."
}
"""SageMaker's arguments that cannot be ignored, and what to do instead."""
_KINDS = {"module": "--module", "no_python": "--no-python"}
"""Arguments that say what the entry point is, with torchrun's flags for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job that arguments ask for."""

    script: str
    options: Texts  # the texts of its options, by option name
    torchrun_flags: tuple[str, ...] = ()
    script_arguments: tuple[str, ...] = ()  # besides its hyperparameters
    job_name: str | None = None  # the run's name; None: made of the script's name and the time
    # Of the launcher: secrets of the script, which no command line should show, and others
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # where the job differs from what the arguments ask for

    def arguments_json(self) -> str:
        """Return the arguments as JSON, without those that are empty."""
        return json.dumps(
            {key: each for key, each in self.arguments.items() if each}, default=as_json
        )

    def flags(self, typed: Texts | None = None) -> list[str]:
        """Return what follows `headrace run`, before the script.

        The texts of options that were typed besides follow the request's own.
        """
        typed = typed or {}
        ours = [
            flag
            for name, each in job_options().items()
            for flag in each.flags([*self.options.get(name, ()), *typed.get(name, ())])
        ]
        return [*ours, *self.torchrun_flags]  # our flags are recognised only before torchrun's

    def words(self, typed: Texts | None = None) -> list[str]:
        """Return what follows `headrace run`; see `flags`."""
        return [*self.flags(typed), self.script, *self.script_arguments]


def request_job(
    given: Mapping[str, Any], inputs: Mapping[str, Input], where: str, *,
    more: Sequence[str] = (), experiment_config: Mapping[str, str] | None = None,
) -> JobRequest:  # fmt: skip
    """Return the job that arguments ask for, given by name; None means not given.

    Error messages begin with `where`, who gave the arguments; those named `more` are allowed, too,
    and left out. Raises UsageError (an unknown argument, whose nearest is named, or an invalid
    value).
    """
    asked = _known_arguments(given, where, more)
    if "entry_point" not in asked:
        raise UsageError(f"{where}entry_point is missing: name the script.")
    if "rules" in asked:
        asked["rules"] = read_rules(asked["rules"], where)
    profiler = _profiler(asked.get("profiler_config"), where)
    ranks = ranks_of(asked.get("distribution", {}), where)
    options = _plain_options(asked, where)
    _read_by_name(options, asked, where)
    groups = _groups(asked, asked.get("engine", "local"), where)
    in_order = training_first(groups, ranks, asked.get("offload"), where)
    options["group"] = [each.flag() for each in in_order]
    _add_inputs(options, asked, inputs, where)
    _add_profile(options, asked, profiler)
    torchrun_flags = []
    if ranks is not None:
        options["distribution"] = [ranks.distribution]
        torchrun_flags += [f"--nproc-per-node={ranks.per_host}"] if ranks.per_host else []
    if asked.get("max_restarts"):
        torchrun_flags.append(f"--max-restarts={asked['max_restarts']}")
    torchrun_flags += _kind_flags(asked, where)
    variables = dict(asked.get("environment", {}))
    for name in variables:
        check_variable_name(name, f"{where}environment: {name!r}")
    secret = {name: value for name, value in variables.items() if is_secret(name, str(value))}
    config = experiment_config or {}
    if not _TEXTS[0](config):
        raise UsageError(f"{where}experiment_config: {shown_value(config)} is not {_TEXTS[1]}.")
    options["environment"] = [
        name if name in secret else f"{name}={value}"
        for name, value in {**_experiment(config, options), **variables}.items()
    ]
    notes = (*_notes(asked), *_debugger_notes(asked, profiler), *input_notes(inputs))
    recorded = {**asked, "inputs": dict(inputs), "notes": list(notes)}
    request = JobRequest(
        script=asked["entry_point"],
        options=options,
        torchrun_flags=tuple(torchrun_flags),
        script_arguments=tuple(map(str, asked.get("args", ()))),
        job_name=asked.get("job_name"),
        variables=secret,
        arguments={**recorded, "experiment_config": dict(config)} if config else recorded,
        notes=notes,
    )
    _check_passable(request, where)
    return request


def _kind_flags(asked: Mapping[str, Any], where: str) -> list[str]:
    """Return torchrun's flag for an entry point that is no Python script."""
    found = [flag for name, flag in _KINDS.items() if asked.get(name)]
    if len(found) > 1:
        raise UsageError(f"{where}{' and '.join(_KINDS)}: give one of them.")
    return found


def _check_passable(request: JobRequest, where: str) -> None:
    """Raise UsageError where a process could not get one of the job's texts."""
    texts = {"entry_point": [request.script], "job_name": [request.job_name or ""]}
    texts["args"] = [*request.script_arguments]
    texts |= {
        job_options()[name].argument or name: [*each] for name, each in request.options.items()
    }
    texts["environment"] += request.variables.values()
    for name, values in texts.items():
        for problem in filter(None, map(env.why_unpassable, values)):
            raise UsageError(f"{where}{name}: {problem}.")
    why = env.why_unpassable(f"{env.JOB_REQUEST.name}={request.arguments_json()}")
    if why is not None:
        raise UsageError(f"{where}all arguments as one text: {why}.")


def _plain_options(asked: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    """Return the texts of options whose arguments have the options' own form."""
    asked = {"contract": "sagemaker", **asked}
    return {
        each.name: argument_texts(each, asked[each.argument], where)
        for each in job_options().values()
        if each.argument in asked and each.argument not in _OWN_FORM
    }


def _read_by_name(options: dict[str, list[str]], asked: Mapping[str, Any], where: str) -> None:
    """Add the options whose arguments have a form of their own, SageMaker's mostly."""
    contracts = _contracts(asked)
    hyperparameters = asked.get("hyperparameters", {})
    check_hyperparameters(hyperparameters)
    options["hyperparameter"] = [
        f"{name}={hyperparameter_text(value)}" for name, value in hyperparameters.items()
    ]
    engine = _choice(asked.get("engine", "local"), ENGINES, f"{where}engine")
    options["engine"] = [engine] if engine and engine != "local" else []
    if "address" in asked and engine != "ray":
        address = asked["address"]
        raise UsageError(f'{where}address {address}: it is a Ray cluster\'s: add engine="ray".')
    options["metric"] = _metrics(asked.get("metric_definitions", ()), where)
    if "checkpoint_uri" in asked and "checkpoint_s3_uri" in asked:
        raise UsageError(
            f"{where}checkpoint_uri and checkpoint_s3_uri mean the same: give one of them."
        )
    checkpoint_uri = asked.get("checkpoint_uri", asked.get("checkpoint_s3_uri"))
    options["checkpoint_uri"] = [checkpoint_uri] if checkpoint_uri else []
    if "max_run" in asked:
        options["max_run"] = [f"{_max_run(asked['max_run'], where):.12g}"]
    if "cache_dir" in asked:
        options["cache_dir"] = [_cache_dir(asked["cache_dir"], where)]
    if "cache_limit" in asked:
        parse_cache_limit(str(asked["cache_limit"]), f"{where}cache_limit")
    if "checkpoint_local_path" in asked:
        path = asked["checkpoint_local_path"]
        place = check_checkpoint_path(path, contracts, f"{where}checkpoint_local_path")
        options["checkpoint_local_path"] = [place] if place else []


def _contracts(asked: Mapping[str, Any]) -> tuple[str, ...]:
    contracts = asked.get("contract", "sagemaker")
    names = contracts.split(",") if isinstance(contracts, str) else contracts
    return tuple(name.strip() for name in names)  # checked by `--contract`


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
    contracts = _contracts(asked)
    is_sagemaker = engine == "local" and any(each.startswith("sagemaker") for each in contracts)
    only = InstanceGroup(ONLY_GROUP if is_sagemaker else DEFAULT_GROUP, kind, count)
    return [] if engine == "local" and count == 1 and kind in LOCAL_TYPES else [only]


def _group(given: object, where: str) -> InstanceGroup:
    if isinstance(given, InstanceGroup):
        return given
    known = ("name", "type", "count", "devices", "instance_group_name", "instance_type",
             "instance_count")  # fmt: skip
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{where}instance_groups: {shown_value(given)} is no InstanceGroup: name, type and "
            "count."
        )
    for name in given:
        if name not in known:
            meant = did_you_mean(str(name), known)
            raise UsageError(f"{where}instance_groups: a group has no {name}.{meant}")
    return InstanceGroup(**given)


def _max_run(value: float | str, where: str) -> float:
    try:
        return parse_max_run(str(value))
    except UsageError:
        raise UsageError(
            f"{where}max_run: {value!r} is no time: a number of seconds, or a text such as 2h."
        ) from None


def _cache_dir(value: str | FileSystemInput | Mapping[str, Any], where: str) -> str:
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


def _metrics(definitions: Sequence[Any], where: str) -> list[str]:
    found: dict[str, str] = {}
    for each in definitions:
        is_valid = isinstance(each, Mapping) and set(each) == {"Name", "Regex"}
        if not is_valid or not all(isinstance(value, str) for value in each.values()):
            raise UsageError(
                f"{where}metric_definitions: {shown_value(each)}: write each as "
                '{"Name": "loss", "Regex": "loss: ([0-9.]+)"}.'
            )
        if "=" in each["Name"] or each["Name"] in found:
            raise UsageError(f"{where}metric_definitions: {each['Name']}: name each once, no '='.")
        found[each["Name"]] = check_metric(
            each["Name"], each["Regex"], f"{where}metric_definitions:"
        )
    return [f"{name}={expression}" for name, expression in found.items()]


def _profiler(given: object, where: str) -> ProfilerConfig | None:
    if not isinstance(given, Mapping):
        return given if isinstance(given, ProfilerConfig) else None
    check_choices(given, list(ProfilerConfig.__dataclass_fields__), f"{where}profiler_config: ")
    return ProfilerConfig(**given)


def _add_profile(
    options: dict[str, list[str]], asked: Mapping[str, Any], profiler: ProfilerConfig | None
) -> None:
    if asked.get("disable_profiler", profiler and profiler.disable_profiler):
        options["profile"] = ["off"]
        options.pop("profile_interval", None)
    elif profiler is not None:
        options["profile_interval"] = [f"{profiler.system_monitor_interval_millis}ms"]
        if profiler.is_deep:
            options["profile"] = ["deep"]


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


def _add_inputs(
    options: dict[str, list[str]], asked: Mapping[str, Any], inputs: Mapping[str, Input],
    where: str,
) -> None:  # fmt: skip
    usual = _choice(asked.get("input_mode"), MODES, f"{where}input_mode")
    modes = {name: mode_of(value, usual) for name, value in inputs.items()}
    for name, mode in modes.items():
        if mode == "Cache" and "cache_dir" not in asked:
            raise UsageError(
                f"{where}inputs: {name}: in mode Cache it lies in a folder of your choice. Name "
                'one: cache_dir="/fsx/cache".'
            )
    options["channel"] = [
        f"{name}={value if isinstance(value, str) else value.channel()}"
        for name, value in inputs.items()
    ]
    options["input_mode"] = [f"{name}={mode}" for name, mode in modes.items() if mode is not None]


def _experiment(config: Mapping[str, str], options: Texts) -> dict[str, str]:
    """Return the Vertex AI variables for SageMaker's `experiment_config`."""
    experiment = config.get("ExperimentName")
    if not experiment or "vertex" not in ",".join(options["contract"]).split(","):
        return {}
    return experiment_variables(experiment, config.get("RunName") or config.get("TrialName"))


def _choice(value: str | None, known: Sequence[str], where: str) -> str | None:
    if value is not None:
        check_choices([value], known, f"{where} ")
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
    have, wanted = version.partition("+")[0].split("."), [part for part in parts if part]
    return have[: len(wanted)] == wanted


def run_stem(given: Mapping[str, Any]) -> str:
    """Return what a run is named after where it has no name; see `open_run_folder`."""
    return str(given.get("base_job_name") or given["entry_point"])


_Check = tuple[Callable[[Any], bool], str]
"""Whether a value is valid, and what it should be."""


def _has_texts(value: object, *, of: Callable[[Mapping[Any, Any]], Iterable[object]]) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in of(value))


def _whole(least: int) -> _Check:
    return partial(is_whole_number, least=least), f"a whole number, {least} or more"


def _instance_of(kinds: tuple[type, ...], wanted: str) -> _Check:
    def is_valid(value: object) -> bool:
        is_switch = isinstance(value, bool) and bool not in kinds
        return isinstance(value, kinds) and value != "" and not is_switch

    return is_valid, wanted


_DICT: _Check = (partial(_has_texts, of=lambda value: value), "values by names")
_TEXTS: _Check = (
    partial(_has_texts, of=lambda value: (*value, *value.values())),
    "texts by names (numbers in quotes)",
)
_LIST: _Check = (is_list, "a list")
_TEXT = _instance_of((str,), "a text")
_ARGS: _Check = (
    lambda value: is_list(value) and all(_instance_of((str, int, float), "")[0](x) for x in value),
    "a list of texts and numbers",
)
_OWN_FORM: dict[str, _Check] = {
    "entry_point": _TEXT,
    **dict.fromkeys(_KINDS, _instance_of((bool,), "true or false")),
    "args": _ARGS,
    "hyperparameters": _DICT,
    "instance_count": _whole(1),
    "instance_type": _TEXT,
    "instance_groups": _LIST,
    "distribution": _DICT,
    "environment": _TEXTS,
    "input_mode": _TEXT,
    "cache_dir": _instance_of((str, Mapping, FileSystemInput), "a text, or a FileSystemInput"),
    "engine": _TEXT,
    "max_run": _instance_of((int, float, str), "a number of seconds, or a text such as 2h"),
    "max_restarts": _whole(0),
    "metric_definitions": _LIST,
    "checkpoint_uri": _TEXT,
    "checkpoint_s3_uri": _TEXT,
    "checkpoint_local_path": _TEXT,
    "profiler_config": _instance_of((ProfilerConfig, Mapping), "a ProfilerConfig"),
    "disable_profiler": _instance_of((bool,), "true or false"),
    "job_name": _TEXT,
    "base_job_name": _TEXT,
    "framework_version": _TEXT,
    "py_version": _TEXT,
}
"""Arguments that `_plain_options` does not read, and their types."""


def argument_names() -> tuple[str, ...]:
    """Return the names of all arguments."""
    plain = (each.argument for each in job_options().values() if each.argument is not None)
    return tuple(dict.fromkeys((*_OWN_FORM, *plain, *_RECORDED_ONLY, *_UNSUPPORTED)))


def _known_arguments(given: Mapping[str, Any], where: str, more: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that are given; raises UsageError for unknown ones and wrong types."""
    known = [*argument_names(), *more]
    for name, value in given.items():
        if name not in known:
            meant = did_you_mean(str(name), known) or " docs/estimator.md lists them."
            raise UsageError(f"{where}there is no argument {name}.{meant}")
        if name in _UNSUPPORTED and value is not None:
            raise UsageError(f"{where}{name}: {_UNSUPPORTED[name]}")
        is_valid, wanted = _OWN_FORM.get(name, (None, ""))
        if is_valid is not None and value is not None and not is_valid(value):
            raise UsageError(f"{where}{name}: {shown_value(value, name)} is not {wanted}.")
    return {name: value for name, value in given.items() if value is not None and name not in more}


def as_json(value: object) -> object:
    """Return a value JSON can hold; for other objects, such as a session, the type's name."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return f"<{type(value).__name__}>"
