"""The folders of a host under SageMaker's contract: /opt/ml, laid out on this machine's disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from headrace.contracts.sagemaker_files import (
    hyperparameters_file,
    input_data_config,
    resource_config,
)
from headrace.contracts.sagemaker_folders import SageMakerFolders
from headrace.contracts.training_job import Machine, TrainingJob
from headrace.core.files import write_whole

_MOST_BYTES = 64 * 1024  # SageMaker shows the first 1,024 characters


class SageMakerTree:
    """Such folders of one host.

    Args:
        base: What is /opt/ml to its scripts; made where it does not exist.

    Attributes:
        folders: Its paths.
    """

    def __init__(self, base: Path) -> None:
        self.folders = SageMakerFolders(str(base))

    def lay_out(
        self,
        job: TrainingJob,
        host: str,
        machine: Machine,
        *,
        code: Path,
        channels: Mapping[str, str],
    ) -> None:
        """Make all folders and files that a script finds as it begins.

        What an earlier attempt left as model, output and checkpoints stays.

        Args:
            job: What all hosts are told.
            host: This one.
            machine: What it has.
            code: The folder of the script's code.
            channels: Where the data of each channel are; those in pipes need no place.
        """
        folders = self.folders
        for folder in (
            folders.config, folders.data, folders.model, folders.output_data,
            folders.intermediate, folders.checkpoints,
        ):  # fmt: skip
            Path(folder).mkdir(parents=True, exist_ok=True)
        for left in (folders.failure, f"{folders.output}/success"):
            Path(left).unlink(missing_ok=True)
        _empty(Path(folders.data))
        self._write("resourceconfig", resource_config(job, host, machine))
        self._write("inputdataconfig", input_data_config(job, host))
        self._write("hyperparameters", hyperparameters_file(job))
        _link(Path(folders.code), code)
        _link(Path(folders.channel("code")), code)  # where SDK 3 has it
        for channel in job.channels_of(host):
            if channel.mode != "Pipe":
                _link_channel(Path(folders.channel(channel.name)), Path(channels[channel.name]))

    def note_end(self, exit_code: int, command: str, told: str) -> None:
        """Leave the file that says how the script ended; what the script said of it stays.

        Args:
            exit_code: As a shell tells it.
            command: What ran.
            told: The script's last traceback, or its last lines.
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
            f'ErrorMessage "{told}"\nCommand "{command}"\n'
        )
        write_whole(failure, text[:_MOST_BYTES])

    def _write(self, name: str, content: object) -> None:
        write_whole(Path(self.folders.config) / f"{name}.json", json.dumps(content, indent=2))


def _empty(folder: Path) -> None:
    """Remove what an earlier attempt laid out, and nothing of what its links lead to."""
    for entry in folder.iterdir():
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
        else:
            shutil.rmtree(entry)


def _link(place: Path, to: Path) -> None:
    if place.is_symlink():
        place.unlink()
    place.symlink_to(to)


def _link_channel(place: Path, data: Path) -> None:
    """Have a channel be a folder, also where it is one file."""
    if data.is_dir():
        _link(place, data)
        return
    place.mkdir(exist_ok=True)
    _link(place / data.name, data)
