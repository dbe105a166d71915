"""The JSON files in /opt/ml/input/config that describe a job to its container on SageMaker.

Source: docs.aws.amazon.com/sagemaker, "How Amazon SageMaker AI Provides Training Information".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from headrace.core.errors import UsageError
from headrace.platforms.training_job import HostResources, TrainingJob

RESERVED_PREFIX = "sagemaker_"
"""The prefix of SageMaker's own hyperparameters."""
_PROCESSES = "sagemaker_mpi_num_of_processes_per_host"
_OF_DISTRIBUTIONS = {
    "torch_distributed": "sagemaker_torch_distributed_enabled",
    "pytorchddp": "sagemaker_pytorch_ddp_enabled",
    "smdistributed": "sagemaker_distributed_dataparallel_enabled",
    "mpi": "sagemaker_mpi_enabled",
}


def resource_config(job: TrainingJob, host: str, machine: HostResources) -> dict[str, Any]:
    """Return the content of resourceconfig.json on a host."""
    group = job.group_of(host)
    return {
        "current_host": host,
        "current_instance_type": group.instance_type,
        "current_group_name": group.name,
        # The toolkit's documentation and its local fallback use this key.
        "current_instance_group": group.name,
        "hosts": list(job.hosts),
        "instance_groups": [
            {
                "instance_group_name": each.name,
                "instance_type": each.instance_type,
                "hosts": list(each.hosts),
            }
            for each in job.groups
        ],
        "network_interface_name": machine.interface,
    }


def input_data_config(job: TrainingJob, host: str) -> dict[str, dict[str, str]]:
    """Return the content of inputdataconfig.json on a host."""
    channels = {}
    for channel in job.channels_of(host):
        entry = {
            "TrainingInputMode": channel.mode,
            "S3DistributionType": channel.distribution,
            "RecordWrapperType": "None",
        }
        if channel.content_type is not None:
            entry["ContentType"] = channel.content_type
        channels[channel.name] = entry
    return channels


def sdk_hyperparameters(job: TrainingJob) -> dict[str, Any]:
    """Return the hyperparameters that SageMaker's SDK adds to the user's."""
    own: dict[str, Any] = {
        "sagemaker_program": job.entry_point,
        "sagemaker_submit_directory": job.submitted,
        "sagemaker_container_log_level": job.log_level,
        "sagemaker_job_name": job.name,
        "sagemaker_region": job.region,
    }
    return own | framework_parameters(job)


def framework_parameters(job: TrainingJob) -> dict[str, Any]:
    """Return those of the SDK's hyperparameters that configure how ranks are started.

    SDK 2 passes the number of ranks per host only for MPI: its other distributions take no number,
    and the toolkit starts one per device.
    """
    if job.distribution is None:
        return {}
    found: dict[str, Any] = {_OF_DISTRIBUTIONS[job.distribution]: True}
    if job.distribution == "mpi" and job.processes_per_host is not None:
        found[_PROCESSES] = job.processes_per_host
    if len(job.groups) > 1:
        found["sagemaker_distribution_instance_groups"] = list(job.distributed)
    return found


def hyperparameters_file(job: TrainingJob) -> dict[str, str]:
    """Return the content of hyperparameters.json: every value is a JSON text."""
    values = {**job.hyperparameters, **sdk_hyperparameters(job)}
    return {name: json.dumps(value) for name, value in values.items()}


def check_hyperparameters(values: Mapping[str, Any]) -> None:
    """Raise UsageError where a name or a value cannot be passed to a script."""
    for name, value in values.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageError(f"hyperparameter {name!r}: its name is a text, without '='.")
        if name.startswith(RESERVED_PREFIX):
            raise UsageError(
                f"hyperparameter {name}: names that begin with {RESERVED_PREFIX} are SageMaker's "
                "own. Choose another one."
            )
        _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"hyperparameter {name}: JSON cannot hold {_kind(value)} ({error}). Give texts, "
            "numbers, true or false, None, or lists and dicts of them."
        ) from None
    if "\\u0000" in text:
        raise UsageError(f"hyperparameter {name}: no variable can hold a zero byte. Leave it out.")


def _kind(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"a value of type {type(value).__name__}"
