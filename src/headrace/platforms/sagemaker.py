"""The contract of SageMaker: folders and files of /opt/ml, variables, arguments, checkpoints.

`sagemaker_variables` returns the variables of SDK 2's containers, and those that SDK 3's add;
`sagemaker_v3_variables` returns SDK 3's alone, with its spelling and its JSON.

Sources: docs.aws.amazon.com/sagemaker, "How Amazon SageMaker AI Processes Training Output" and "How
Amazon SageMaker AI Provides Training Information"; sagemaker-training 5.1 (environment.py,
mapping.py) and sagemaker-train 1.27 (container_drivers/scripts/environment.py,
container_drivers/common/utils.py).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.files import write_text_atomically
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
    try:
        os.fsencode(json.dumps(value, ensure_ascii=False))
    except UnicodeEncodeError:
        raise UsageError(
            f"hyperparameter {name}: it holds half of a character (a lone surrogate), which no "
            "variable can. Leave it out."
        ) from None


def _kind(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"a value of type {type(value).__name__}"


DEFAULT_BASE = "/opt/ml"


class SageMakerFolders:
    """The paths of SageMaker's folders; `base` is the root folder, an absolute path."""

    def __init__(self, base: str = DEFAULT_BASE) -> None:
        self.base = base
        self.code = f"{base}/code"  # the script's, for SDK 2's containers
        self.model = f"{base}/model"
        self.checkpoints = f"{base}/checkpoints"  # synced while the job runs, restored on a restart
        self.input = f"{base}/input"
        self.config = f"{base}/input/config"  # files that describe the job
        self.data = f"{base}/input/data"  # the channels
        self.output = f"{base}/output"  # other than the model
        self.output_data = f"{base}/output/data"  # uploaded with the model
        self.intermediate = f"{base}/output/intermediate"  # uploaded while the job runs
        self.failure = f"{base}/output/failure"  # a file with the reason of a failure

    def channel(self, name: str) -> str:
        """Return the folder of a channel."""
        return f"{self.data}/{name}"


_MAX_FAILURE_BYTES = 64 * 1024  # SageMaker shows the first 1,024 characters


class SageMakerTree:
    """SageMaker's folders of one host, on disk; `base` is /opt/ml to the host's scripts."""

    def __init__(self, base: Path) -> None:
        self.folders = SageMakerFolders(str(base))

    def lay_out(
        self,
        job: TrainingJob,
        host: str,
        machine: HostResources,
        *,
        code: Path,
        channels: Mapping[str, str],
    ) -> None:
        """Create all folders and files that a script finds at its start.

        Model, output and checkpoints of an earlier attempt stay. `channels` says where their data
        is; channels in mode Pipe need none.
        """
        folders = self.folders
        outputs = (folders.model, folders.output_data, folders.intermediate, folders.checkpoints)
        for folder in (folders.config, folders.data, *outputs):
            Path(folder).mkdir(parents=True, exist_ok=True)
        for left in (folders.failure, f"{folders.output}/success"):
            Path(left).unlink(missing_ok=True)
        _clear(Path(folders.data))
        files = {
            "resourceconfig": resource_config(job, host, machine),
            "inputdataconfig": input_data_config(job, host),
            "hyperparameters": hyperparameters_file(job),
        }
        for name, content in files.items():
            path = Path(folders.config) / f"{name}.json"
            write_text_atomically(path, json.dumps(content, indent=2))
        _symlink(Path(folders.code), code)
        _symlink(Path(folders.channel("code")), code)  # where SDK 3 has it
        for channel in job.channels_of(host):
            if channel.mode != "Pipe":
                _symlink_channel(Path(folders.channel(channel.name)), Path(channels[channel.name]))

    def note_end(self, exit_code: int, command: str, message: str) -> None:
        """Write the file about the script's end; a failure file of the script's own stays.

        `exit_code` is 128 + n for signal n, `message` the last traceback, or the last lines.
        """
        output = Path(self.folders.output)
        failure = Path(self.folders.failure)
        if exit_code == 0:
            failure.unlink(missing_ok=True)  # of an earlier start of the ranks
            (output / "success").touch()
            return
        if failure.exists():
            return
        reason = "OutOfMemory: killed, often for want of memory\n" if exit_code == 137 else ""
        text = (
            f"{reason}ExecuteUserScriptError:\nExitCode {exit_code}\n"
            f'ErrorMessage "{message}"\nCommand "{command}"\n'
        )
        write_text_atomically(failure, text[:_MAX_FAILURE_BYTES])


def _clear(folder: Path) -> None:
    """Remove an earlier attempt's files and links, but not the targets of links."""
    for entry in folder.iterdir():
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
        else:
            shutil.rmtree(entry)


def _symlink(path: Path, target: Path) -> None:
    if path.is_symlink():
        path.unlink()
    path.symlink_to(target)


def _symlink_channel(path: Path, data: Path) -> None:
    """Create a channel's folder, also where its data is a single file."""
    if data.is_dir():
        _symlink(path, data)
        return
    path.mkdir(exist_ok=True)
    _symlink(path / data.name, data)


CHECKPOINT_PATH_FLAG = "--checkpoint-local-path"
_DEFAULT_CHECKPOINTS = SageMakerFolders().checkpoints
_RESERVED_FOLDERS = ("code", "input", "model", "output")


def check_checkpoint_path(text: str, contracts: Sequence[str], flag: str) -> str | None:
    """Return the normalized path, None if checkpoints are there already; raises UsageError."""
    if not any(each.startswith("sagemaker") for each in contracts):
        raise UsageError(
            f"{flag} {text}: it is SageMaker's. Leave it out, or add the contract sagemaker; other "
            "scripts find their checkpoints by HEADRACE_CHECKPOINT_DIR, or by AIP_CHECKPOINT_DIR."
        )
    if not text.startswith("/"):
        raise UsageError(f"{flag} {text}: it begins with /, such as /opt/ml/checkpoints.")
    path = PurePosixPath(os.path.normpath(f"/{text.lstrip('/')}"))
    if path.is_relative_to(_DEFAULT_CHECKPOINTS):
        return None
    base = PurePosixPath(DEFAULT_BASE)
    if base.is_relative_to(path) or (
        path.is_relative_to(base) and path.relative_to(base).parts[0] in _RESERVED_FOLDERS
    ):
        raise UsageError(
            f"{flag} {text}: the contract has other things there. Take a folder apart, such as "
            f"{_DEFAULT_CHECKPOINTS}."
        )
    return str(path)


def make_checkpoint_path(path: str, base: Path, *, can_bind_mount: bool) -> None:
    """Create a path of `check_checkpoint_path` at which checkpoints can be mounted.

    `base` is /opt/ml to the script. UsageError: they cannot be mounted there (`can_bind_mount`:
    whether a process may have a mount namespace), or would hide existing files.
    """
    if not can_bind_mount:
        raise UsageError(
            f"{CHECKPOINT_PATH_FLAG} {path}: a process of this host may mount nothing, or code "
            f"or data lie in {DEFAULT_BASE}, so checkpoints cannot be seen there. Leave it out, "
            "and have the script write to the folder that HEADRACE_CHECKPOINT_DIR names (with "
            "--checkpoint-uri)."
        )
    folder = Path(path)
    if folder.is_relative_to(DEFAULT_BASE):
        folder = base / folder.relative_to(DEFAULT_BASE)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{CHECKPOINT_PATH_FLAG} {path}: there is something already, which the script "
                "would not see. Name a folder that is empty, or does not exist."
            )
        above = next(each for each in folder.parents if each.exists())
        # The mount namespace replaces a parent that is not writable, also the root, by a copy.
        if above != Path("/") and os.access(above, os.W_OK):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{CHECKPOINT_PATH_FLAG} {path}: checkpoints cannot be seen there: "
            f"{error.strerror}. Take another."
        ) from error


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
        read = value
        if isinstance(value, str):
            with suppress(json.JSONDecodeError):
                read = json.loads(value)
        args += [f"--{name}", read if isinstance(read, str) else json.dumps(read)]
    return args


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
