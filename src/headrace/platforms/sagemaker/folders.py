"""The folders and files of /opt/ml on SageMaker: paths, configuration, outcome, checkpoints.

Sources: docs.aws.amazon.com/sagemaker, "How Amazon SageMaker AI Processes Training Output" and "How
Amazon SageMaker AI Provides Training Information"; sagemaker-training 5, environment.py.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
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
            "scripts are told of their checkpoints by HEADRACE_CHECKPOINT_DIR, or by "
            "AIP_CHECKPOINT_DIR."
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
