"""The environment of a script on its host: variables, arguments, folders, dependencies."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, StorageError, UsageError
from headrace.core.process.mount_namespace import namespace_command
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.data.channels.sidecar_client import ActiveChannels
from headrace.jobs.environment.unmounted_folder import UnmountedFolder
from headrace.jobs.spec import ScriptOptions
from headrace.platforms.sagemaker import (
    DEFAULT_BASE,
    SageMakerFolders,
    SageMakerTree,
    make_checkpoint_path,
)
from headrace.platforms.script_contract import ContractName, ScriptContract, script_arguments
from headrace.platforms.training_job import HostResources
from headrace.platforms.vertex import SEEN_OUTPUT, VERTEX_FOLDERS, output_mounts, vertex_paths
from headrace.records.redaction import hide_secrets

_HOSTS_FILE = Path("/etc/hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnvironment:
    """What the script on a host gets."""

    environment: Mapping[str, str] = field(default_factory=dict)  # besides inherited variables
    arguments: tuple[str, ...] = ()  # before the user's own
    folder: str | None = None  # the working directory; None: unchanged
    bind_mounts: Mapping[str, str] = field(default_factory=dict)  # source paths by mount point
    tree: SageMakerTree | None = None  # SageMaker's folders; None: the contract has none
    runs_once: bool = False  # the script is no rank here, though torchrun starts it
    channels: tuple[ActiveChannels, ...] = ()  # those that are active while the job runs
    unmounted: UnmountedFolder | None = None  # what the script writes there is lost

    def with_mounts(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command with the bind mounts in place."""
        if not self.bind_mounts:
            return list(command)
        return namespace_command(sys.executable, dict(self.bind_mounts), command)

    def source_of(self, seen: str) -> Path:
        """Return where a path that the script sees lies for other processes."""
        for place, source in self.bind_mounts.items():
            if Path(seen).is_relative_to(place):
                return Path(source) / Path(seen).relative_to(place)
        return Path(seen)

    def failure(self) -> str | None:
        """Return why the script did not get all of a channel; None: no failure is known."""
        return next(filter(None, (each.failure() for each in self.channels)), None)

    def verdict(self, exit_code: int) -> int:
        """Return the job's exit code for the script's: a failed channel fails the job."""
        failure = self.failure()
        if failure is None:
            return exit_code
        print_status(failure)
        return StorageError.exit_code

    def has_lost_files(self) -> bool:
        """Return whether the script wrote where nothing is mounted, after saying where."""
        loss = None if self.unmounted is None else self.unmounted.loss()
        if loss is not None:
            print_status(loss)
        return loss is not None

    def note_end(self, exit_code: int, command: Sequence[str], message: str) -> None:
        """Write the contract's failure file, where it has one, and end the channels."""
        for each in self.channels:
            each.end(exit_code)
        if self.tree is not None:
            try:
                self.tree.note_end(exit_code, shlex.join(command), message)
            except OSError as error:  # a full disk must not cost the script's own exit code
                print_status(f"{self.tree.folders.failure}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """The inputs of `build_environment`."""

    script: ScriptContract
    addresses: Mapping[str, str]  # of all hosts, by name
    folder: Path  # of this host's files; it is created
    output: Path  # of a Vertex AI job, shared by its hosts
    code: Path
    is_code_named: bool  # by the user: the script starts there under any contract
    channels: Mapping[str, str]  # a folder or file each; in mode Pipe a path or a URL
    bind_mounts: Mapping[str, str] = field(default_factory=dict)  # besides the contract's own
    checkpoint_path: str | None = None  # a further path where the script sees its checkpoints
    can_mount_output: bool = False  # the script sees it below /gcs, as on Vertex AI

    @property
    def base(self) -> Path:
        """The folder that scripts for SageMaker see as /opt/ml."""
        return self.folder / "ml"

    @property
    def seen_output(self) -> str:
        """The output's path as the script sees it."""
        return SEEN_OUTPUT if self.can_mount_output else str(self.output)


def variables_before_channels(
    spec: EnvironmentSpec, machine: HostResources, *, can_bind_mount: bool
) -> dict[str, str]:
    """Return the script's variables that do not depend on channels; see `build_environment`."""
    seen = SageMakerFolders() if can_bind_mount else SageMakerFolders(str(spec.base))
    return spec.script.variables(seen, vertex_paths(spec.seen_output, {}), machine)


def build_environment(
    spec: EnvironmentSpec, machine: HostResources, *, can_bind_mount: bool
) -> ScriptEnvironment:
    """Create the folders of a host and return its script environment; raises OSError.

    UsageError: a variable or argument is too long, or the checkpoint path is not possible.
    """
    script, tree, bind_mounts = spec.script, None, dict(spec.bind_mounts)
    seen = SageMakerFolders()
    environment: dict[str, str] = {}
    if {"sagemaker", "sagemaker-v3"} & set(script.contracts):
        tree = SageMakerTree(spec.base)
        tree.lay_out(script.job, script.host, machine, code=spec.code, channels=spec.channels)
        if can_bind_mount:
            bind_mounts[DEFAULT_BASE] = tree.folders.base
        else:
            seen = tree.folders
        if spec.checkpoint_path is not None:
            make_checkpoint_path(spec.checkpoint_path, spec.base, can_bind_mount=can_bind_mount)
            bind_mounts[spec.checkpoint_path] = tree.folders.checkpoints
        environment = {**_smddp_variables(), **_streamed_channels(spec, seen)}
    if "vertex" in script.contracts:
        for name in VERTEX_FOLDERS:
            (spec.output / name).mkdir(parents=True, exist_ok=True)
        if spec.can_mount_output:
            bind_mounts |= output_mounts(str(spec.output))
    if can_bind_mount:
        bind_mounts[str(_HOSTS_FILE)] = str(_write_hosts(spec))
    variables = script.variables(seen, vertex_paths(spec.seen_output, spec.channels), machine)
    _check_lengths(
        {**variables, "its arguments": max(script.arguments(), key=len, default="")}, script
    )
    return ScriptEnvironment(
        environment={**_unset_variables(variables), **environment},
        arguments=tuple(script.arguments()),
        folder=str(spec.code) if tree is not None or spec.is_code_named else None,
        bind_mounts=bind_mounts,
        tree=tree,
    )


def _check_lengths(texts: Mapping[str, str], script: ScriptContract) -> None:
    """Raise UsageError where a variable or argument is longer than the kernel allows."""
    for name, value in texts.items():
        count = len(name) + len(os.fsencode(value)) + 2  # "=" and the zero at the end
        if count > env.MAX_TEXT_BYTES:
            values = script.job.hyperparameters
            longest = max(values, key=lambda each: len(str(values[each])), default="")
            raise UsageError(
                f"{name} would take {count:,} bytes, and a process gets {env.MAX_TEXT_BYTES:,} "
                f"at most. Shorten the hyperparameters, {longest} first: put it into a file of a "
                "channel."
            )


def _unset_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Drop variables that are set already, where the contract has no value or they are NCCL's."""
    own = env.values_of(variables)
    return {
        name: value
        for name, value in variables.items()
        if not own[name] or (value and not name.startswith("NCCL_"))
    }


def existing_job_environment(
    contracts: Sequence[ContractName], hyperparameters: Mapping[str, Any], *, has_ranks: bool,
    folder: str | None,
) -> ScriptEnvironment:  # fmt: skip
    """Return the script environment within an existing job, which has nearly everything.

    The hyperparameters are those of the command line; the job's own reach the process it started.
    """
    is_sagemaker = any(name.startswith("sagemaker") for name in contracts)
    return ScriptEnvironment(
        environment=_smddp_variables() if is_sagemaker else {},
        arguments=tuple(script_arguments(contracts, hyperparameters)),
        folder=folder,
        runs_once=not has_ranks,
    )


def _streamed_channels(spec: EnvironmentSpec, seen: SageMakerFolders) -> dict[str, str]:
    """Return the variable from which ShardDataset takes the URLs of channels in mode Pipe."""
    urls = {
        seen.channel(channel.name): spec.channels[channel.name]
        for channel in spec.script.job.channels_of(spec.script.host)
        if channel.mode == "Pipe"
    }
    return {env.PIPE_CHANNELS.name: json.dumps(urls)} if urls else {}


def _smddp_variables() -> dict[str, str]:
    """Return the variables with which a script can import the smdistributed stand-in."""
    return {env.SMDDP.name: "1", env.PYTHONPATH.name: env.pythonpath_with(SITECUSTOMIZE_DIR)}


def _write_hosts(spec: EnvironmentSpec) -> Path:
    """Write a copy of this machine's /etc/hosts with the job's hosts added."""
    own = _HOSTS_FILE.read_bytes().decode(errors="replace") if _HOSTS_FILE.exists() else ""
    lines = [f"{address}\t{host}\n" for host, address in spec.addresses.items()]
    spec.folder.mkdir(parents=True, exist_ok=True)
    file = spec.folder / "hosts"
    file.write_text(f"{own.rstrip()}\n{''.join(lines)}", encoding="utf-8")
    return file


_DEPENDENCIES = "dependencies"


def with_script_options(
    script_env: ScriptEnvironment, options: ScriptOptions, folder: Path
) -> ScriptEnvironment:
    """Return a script environment with the command line's variables and dependencies added.

    Links to the dependencies are made in the run folder; raises LaunchError where they cannot be,
    UsageError where a variable contradicts the contract, or two dependencies have one name.
    """
    if not options.environment and not options.dependencies:
        return script_env
    check_environment(options.environment, script_env.environment)
    paths = [
        options.environment.get(env.PYTHONPATH.name),
        script_env.environment.get(env.PYTHONPATH.name) or ":".join(env.pythonpath()),
    ]
    if options.dependencies:
        paths.append(str(_link_dependencies(options.dependencies, folder / _DEPENDENCIES)))
    environment = {**script_env.environment, **options.environment, **_path_variable(*paths)}
    return replace(script_env, environment=environment)


def _path_variable(*paths: str | None) -> dict[str, str]:
    """Return PYTHONPATH with the entries of several, each once; ours, if it is there, is first.

    A sitecustomize of the user's would stand in for ours, which runs the user's in turn.
    """
    entries = dict.fromkeys(part for path in paths if path for part in path.split(":"))
    ours = [SITECUSTOMIZE_DIR] if SITECUSTOMIZE_DIR in entries else []
    joined = ":".join(dict.fromkeys([*ours, *entries]))
    return {env.PYTHONPATH.name: joined} if joined else {}


def check_environment(environment: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Raise UsageError where a variable of the command line contradicts the contract's."""
    for name, value in environment.items():
        if variables.get(name, value) != value and name != env.PYTHONPATH.name:
            own, others = (hide_secrets(each, name) for each in (value, variables[name]))
            raise UsageError(
                f"--environment {name}={own}: the contract says {name}={others}. Leave it out, or "
                "take another name."
            )


_EXPERIMENT = (env.MLFLOW_EXPERIMENT_NAME.name, env.MLFLOW_EXPERIMENT_ID.name)


def join_environments(
    script: Mapping[str, str | None], recorded: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return a recorded script's variables; PYTHONPATH has the entries of both.

    Where the user says by --environment where the script's own calls of MLflow go, the run's place
    is none of theirs.
    """
    path = env.PYTHONPATH.name
    kept = dict(recorded)
    is_named = any(script.get(name) for name in _EXPERIMENT)
    is_elsewhere = bool(script.get(env.MLFLOW_TRACKING_URI.name))
    own = [env.MLFLOW_TRACKING_URI.name] if is_elsewhere else []
    for name in (*own, *(_EXPERIMENT if is_elsewhere or is_named else ())):
        kept.pop(name, None)
    # Of name and number, that which is not given may be here: MLflow refuses two that differ.
    others = {name: None for name in _EXPERIMENT if is_named and not script.get(name)}
    joined = _path_variable(script.get(path), recorded.get(path))
    return {**script, **kept, **others, **joined}


def _link_dependencies(dependencies: tuple[str, ...], folder: Path) -> Path:
    """Return a folder of links to the dependencies, by name, as in SageMaker's code folder."""
    paths: dict[str, str] = {}
    for path in dependencies:
        name = Path(path).name
        if paths.setdefault(name, path) != path:
            raise UsageError(
                f"--dependency {path} and --dependency {paths[name]} have one name: a script "
                "could import one of them alone. Rename one."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            draft = folder / f".{name}.{os.getpid()}"
            draft.unlink(missing_ok=True)
            draft.symlink_to(Path(path).absolute())
            draft.replace(folder / name)
    except OSError as error:
        raise LaunchError(
            f"What the script imports cannot be linked in {folder}: {error}. Make room, or take "
            "another folder with --run-dir."
        ) from error
    return folder
