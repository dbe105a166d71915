"""The arguments of an Estimator, which are also the keys of job files, and their types.

Most names are SageMaker's. Some of its arguments, such as a role, have no meaning here; they are
accepted and recorded, so that a launch script only needs another import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from headrace.core.errors import UsageError
from headrace.core.suggestions import did_you_mean
from headrace.jobs.sagemaker_sdk.config import InstanceGroup, ProfilerConfig
from headrace.jobs.sagemaker_sdk.inputs import FileSystemInput


class JobArguments(TypedDict, total=False):
    """The arguments besides `entry_point`, by name; docs/estimator.md describes them."""

    source_dir: str | None
    dependencies: Sequence[str] | None
    hyperparameters: Mapping[str, Any] | None
    instance_count: int | None
    instance_type: str | None
    instance_groups: Sequence[InstanceGroup] | None
    distribution: Mapping[str, Any] | None
    contract: str | Sequence[str] | None
    environment: Mapping[str, str] | None
    input_mode: str | None
    cache_dir: str | FileSystemInput | None
    cache_limit: int | str | None
    engine: str | None
    address: str | None
    offload: str | None
    max_run: float | str | None
    max_restarts: int | None
    metric_definitions: Sequence[Mapping[str, str]] | None
    checkpoint_uri: str | None
    checkpoint_s3_uri: str | None
    checkpoint_local_path: str | None
    output_path: str | None
    profiler_config: ProfilerConfig | None
    disable_profiler: bool | None
    job_name: str | None
    base_job_name: str | None
    framework_version: str | None
    py_version: str | None
    role: Any
    image_uri: Any
    sagemaker_session: Any
    volume_size: Any
    volume_kms_key: Any
    output_kms_key: Any
    tags: Any
    subnets: Any
    security_group_ids: Any
    rules: Any
    debugger_hook_config: Any
    tensorboard_output_config: Any
    code_location: Any
    use_spot_instances: Any
    max_wait: Any
    max_retry_attempts: Any
    keep_alive_period_in_seconds: Any
    encrypt_inter_container_traffic: Any
    enable_network_isolation: Any
    enable_sagemaker_metrics: Any
    container_log_level: Any
    git_config: Any


def _text(value: object) -> str | None:
    return None if isinstance(value, str) and value else "a text"


def _texts(value: object) -> str | None:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return None if all(isinstance(each, str) for each in value) else "a list of texts"
    return "a list of texts"


def _text_or_texts(value: object) -> str | None:
    return None if _text(value) is None or _texts(value) is None else "a text, or a list of them"


def _dict(value: object) -> str | None:
    is_valid = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return None if is_valid else "values by names"


def _texts_by_name(value: object) -> str | None:
    if isinstance(value, Mapping) and all(
        isinstance(each, str) for each in (*value, *value.values())
    ):
        return None
    return "texts by names (numbers in quotes)"


def _list(value: object) -> str | None:
    is_valid = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return None if is_valid else "a list"


def _bool(value: object) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _whole(least: int) -> Callable[[object], str | None]:
    def check(value: object) -> str | None:
        is_valid = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if is_valid else f"a whole number, {least} or more"

    return check


def _seconds(value: object) -> str | None:
    is_valid = isinstance(value, int | float | str) and not isinstance(value, bool)
    return None if is_valid else "a number of seconds, or a text such as 2h"


def _folder(value: object) -> str | None:
    is_valid = isinstance(value, FileSystemInput | Mapping) or _text(value) is None
    return None if is_valid else "a text, or a FileSystemInput"


def _bytes(value: object) -> str | None:
    is_valid = isinstance(value, int | str) and not isinstance(value, bool)
    return None if is_valid else "a number of bytes, or a text such as 100GB"


def _profiler(value: object) -> str | None:
    return None if isinstance(value, ProfilerConfig | Mapping) else "a ProfilerConfig"


_CHECKS: dict[str, Callable[[object], str | None]] = {
    "entry_point": _text,
    "source_dir": _text,
    "dependencies": _texts,
    "hyperparameters": _dict,
    "instance_count": _whole(1),
    "instance_type": _text,
    "instance_groups": _list,
    "distribution": _dict,
    "contract": _text_or_texts,
    "environment": _texts_by_name,
    "input_mode": _text,
    "cache_dir": _folder,
    "cache_limit": _bytes,
    "engine": _text,
    "address": _text,
    "offload": _text,
    "max_run": _seconds,
    "max_restarts": _whole(0),
    "metric_definitions": _list,
    "checkpoint_uri": _text,
    "checkpoint_s3_uri": _text,
    "checkpoint_local_path": _text,
    "output_path": _text,
    "profiler_config": _profiler,
    "disable_profiler": _bool,
    "job_name": _text,
    "base_job_name": _text,
    "framework_version": _text,
    "py_version": _text,
}
_UNSUPPORTED = {
    "git_config": "nothing is cloned here. Run `git clone --branch BRANCH URL` yourself, and name "
    "the folder of the code in it: source_dir.",
}
"""SageMaker's arguments that cannot be ignored, and what to do instead."""
ARGUMENTS = ("entry_point", *JobArguments.__annotations__)
"""The names of all arguments."""


def check_arguments(
    given: Mapping[str, Any], where: str, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the arguments that are given; None means not given.

    Args:
        given: The arguments, by name.
        where: Prefix of error messages: who gave the arguments.
        more: Names of further allowed arguments, which are left out of the result.

    Raises:
        UsageError: An unknown argument (the message names the nearest one), or a wrong type.
    """
    known = [*ARGUMENTS, *more]
    for name, value in given.items():
        if name not in known:
            meant = did_you_mean(str(name), known) or " docs/estimator.md lists them."
            raise UsageError(f"{where}there is no argument {name}.{meant}")
        if name in _UNSUPPORTED and value is not None:
            raise UsageError(f"{where}{name}: {_UNSUPPORTED[name]}")
        check = _CHECKS.get(name)
        wanted = None if check is None or value is None else check(value)
        if wanted is not None:
            raise UsageError(f"{where}{name}: {value!r} is not {wanted}.")
    return {name: value for name, value in given.items() if value is not None and name not in more}
