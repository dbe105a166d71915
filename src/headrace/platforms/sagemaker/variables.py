"""The environment variables and the arguments of a script on SageMaker, for SDK 2 and SDK 3.

`sagemaker_variables` returns those of SDK 2's containers, and those that SDK 3's add;
`sagemaker_v3_variables` returns SDK 3's alone, with its spelling and its JSON. Sources: sagemaker-
training 5.1 (environment.py, mapping.py) and sagemaker-train 1.27
(container_drivers/scripts/environment.py, container_drivers/common/utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.platforms.sagemaker.folders import (
    SageMakerFolders,
    framework_parameters,
    input_data_config,
    resource_config,
)
from headrace.platforms.training_job import HostResources, TrainingJob


def sagemaker_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the arguments as SDK 2's containers pass them to a script.

    They are sorted by name; a name of one letter has one dash; True is `True`, None is empty, and
    a dict is `a=1,b=2`.
    """
    args = []
    for name in sorted(hyperparameters):
        value = hyperparameters[name]
        if isinstance(value, Mapping):
            value = ",".join(f"{key}={inner}" for key, inner in sorted(value.items()))
        args += [f"--{name}" if len(name) > 1 else f"-{name}", "" if value is None else str(value)]
    return args


def sagemaker_v3_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the arguments as SDK 3's drivers pass them to a script.

    They are in the order given; all values but texts are JSON. A text that is JSON is parsed first.
    """
    args = []
    for name, value in hyperparameters.items():
        read = _parse_json_text(value) if isinstance(value, str) else value
        args += [f"--{name}", read if isinstance(read, str) else json.dumps(read)]
    return args


def _parse_json_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


MASTER_PORT = 7777
_FRAMEWORK_MODULE = "sagemaker_pytorch_container.training:main"


def sagemaker_variables(
    job: TrainingJob, host: str, folders: SageMakerFolders, machine: HostResources
) -> dict[str, str]:
    """Return the variables of a script on a host: SDK 2's, and those that SDK 3 adds."""
    training = _environment(job, host, folders, machine)
    named = {name: value for name, value in training.items() if name not in _TRAINING_ENV_ONLY}
    named["hps"] = named.pop("hyperparameters")
    named["framework_params"] = named.pop("additional_framework_parameters")
    named["channels"] = sorted(training["channel_input_dirs"])
    named |= {"training_env": training, "user_args": sagemaker_arguments(job.hyperparameters)}
    named |= {f"channel_{name}": path for name, path in training["channel_input_dirs"].items()}
    named |= {f"hp_{name}": value for name, value in job.hyperparameters.items()}
    values = {f"SM_{name.upper()}": _compact(value) for name, value in named.items()}
    added = sagemaker_v3_variables(job, host, folders, machine)
    return {**added, **values, **_container_variables(job, host, folders, machine)}


def sagemaker_v3_variables(
    job: TrainingJob, host: str, folders: SageMakerFolders, machine: HostResources
) -> dict[str, str]:
    """Return the variables of a script on a host, as SDK 3's containers set them."""
    resources = resource_config(job, host, machine)
    hosts = resources["hosts"]
    variables: dict[str, Any] = {
        "SM_MODEL_DIR": folders.model,
        "SM_INPUT_DIR": folders.input,
        "SM_INPUT_CONFIG_DIR": folders.config,
        "SM_OUTPUT_DIR": folders.output,
        "SM_OUTPUT_DATA_DIR": folders.output_data,
        "SM_INPUT_DATA_DIR": folders.data,
        "SM_OUTPUT_FAILURE": folders.failure,
        "SM_LOG_LEVEL": job.log_level,
        "SM_MASTER_ADDR": job.master,
        "SM_MASTER_PORT": job.master_port or MASTER_PORT,
        "SM_SOURCE_DIR": folders.channel("code"),
        "SM_ENTRY_SCRIPT": job.entry_point,
        "SM_HPS": dict(job.hyperparameters),
        "SM_CURRENT_HOST": host,
        "SM_CURRENT_INSTANCE_TYPE": resources["current_instance_type"],
        "SM_HOSTS": hosts,
        "SM_NETWORK_INTERFACE_NAME": machine.interface,
        "SM_HOST_COUNT": len(hosts),
        "SM_CURRENT_HOST_RANK": hosts.index(host),
        "SM_NUM_CPUS": machine.cpus,
        "SM_NUM_GPUS": machine.gpus,
        "SM_NUM_NEURONS": 0,
        "SM_RESOURCE_CONFIG": resources,
        "SM_INPUT_DATA_CONFIG": input_data_config(job, host),
    }
    if job.distribution is not None:
        variables["SM_DISTRIBUTED_CONFIG"] = _distributed_config(job)
    channels = [channel.name for channel in job.channels_of(host)]
    variables["SM_CHANNELS"] = channels
    variables |= {f"SM_CHANNEL_{name.upper()}": folders.channel(name) for name in channels}
    variables |= {
        f"SM_HP_{name.replace('-', '_').upper()}": value
        for name, value in job.hyperparameters.items()
    }
    variables["SM_TRAINING_ENV"] = _v3_environment(job, variables, folders, channels)
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in variables.items()
    }


def _environment(
    job: TrainingJob, host: str, folders: SageMakerFolders, machine: HostResources
) -> dict[str, Any]:
    """Return the attributes of the toolkit's `Environment` on a host."""
    group = job.group_of(host)
    resources = resource_config(job, host, machine)
    inputs = input_data_config(job, host)
    return {
        "additional_framework_parameters": framework_parameters(job),
        "channel_input_dirs": {name: folders.channel(name) for name in inputs},
        "current_host": host,
        "current_instance_group": group.name,
        "current_instance_group_hosts": list(group.hosts),
        "current_instance_type": group.instance_type,
        "distribution_hosts": [
            each for one in job.groups if one.name in job.distributed for each in one.hosts
        ],
        "distribution_instance_groups": list(job.distributed),
        "framework_module": _FRAMEWORK_MODULE,
        "hosts": resources["hosts"],
        "hyperparameters": dict(job.hyperparameters),
        "input_config_dir": folders.config,
        "input_data_config": inputs,
        "input_dir": folders.input,
        "instance_groups": [each.name for each in job.groups],
        "instance_groups_dict": {
            each["instance_group_name"]: each for each in resources["instance_groups"]
        },
        "is_hetero": len(job.groups) > 1,
        "is_master": host == job.master,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": job.name,
        "log_level": job.log_level,
        "master_hostname": job.master,
        "model_dir": folders.model,
        "module_dir": job.submitted,
        "module_name": job.entry_point.removesuffix(".py"),
        "network_interface_name": machine.interface,
        "num_cpus": machine.cpus,
        "num_gpus": machine.gpus,
        "num_neurons": 0,
        "output_data_dir": folders.output_data,
        "output_dir": folders.output,
        "output_intermediate_dir": folders.intermediate,
        "resource_config": resources,
        "topology": [],
        "user_entry_point": job.entry_point,
    }


_TRAINING_ENV_ONLY = (
    "channel_input_dirs", "distribution_hosts", "is_master", "is_modelparallel_enabled",
    "is_smddpmprun_installed", "is_smddprun_installed", "job_name", "master_hostname", "topology",
)  # fmt: skip
"""Attributes that the toolkit has only in SM_TRAINING_ENV."""


def _container_variables(
    job: TrainingJob, host: str, folders: SageMakerFolders, machine: HostResources
) -> dict[str, str]:
    """Return the variables that SageMaker and its containers set besides SM_*.

    NCCL_IB_DISABLE, which the toolkit sets, is left out: it turns InfiniBand off.
    """
    return {
        "CURRENT_HOST": host,
        "NCCL_SOCKET_IFNAME": machine.interface,
        "SM_DLC_TORCH_VERSION": machine.torch,
        "MASTER_ADDR": job.master,
        "MASTER_PORT": str(job.master_port or MASTER_PORT),
        "SAGEMAKER_BASE_DIR": folders.base,
        "SAGEMAKER_JOB_NAME": job.name,
        "SAGEMAKER_REGION": job.region,
        "SAGEMAKER_TRAINING_MODULE": _FRAMEWORK_MODULE,
        "TRAINING_JOB_NAME": job.name,
    }


def _distributed_config(job: TrainingJob) -> dict[str, Any]:
    """Return the content of SDK 3's distributed.json: the fields of its `Torchrun` or its `MPI`.

    No number means one rank per device, which its drivers count themselves. Source: sagemaker-train
    1.27, train/distributed.py and model_trainer.py.
    """
    other = "mpi_additional_options" if job.distribution == "mpi" else "smp"
    return {"process_count_per_node": job.processes_per_host, other: None}


def _v3_environment(
    job: TrainingJob, variables: dict[str, Any], folders: SageMakerFolders, channels: list[str]
) -> dict[str, Any]:
    same = (
        "current_host", "current_instance_type", "hosts", "master_addr", "master_port",
        "input_config_dir", "input_data_dir", "input_dir", "log_level", "model_dir",
        "network_interface_name", "num_cpus", "num_gpus", "num_neurons", "output_data_dir",
        "resource_config", "input_data_config",
    )  # fmt: skip
    return {
        **{name: variables[f"SM_{name.upper()}"] for name in same},
        "channel_input_dirs": {name: folders.channel(name) for name in channels},
        "hyperparameters": variables["SM_HPS"],
        "job_name": job.name,
    }


def _compact(value: Any) -> str:
    """Return a value as SDK 2's containers write it: texts unchanged, None as an empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
