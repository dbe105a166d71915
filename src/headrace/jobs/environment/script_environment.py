"""What a script finds on its host: variables, arguments, folders, dependencies."""

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
from headrace.jobs.spec import ScriptOptions
from headrace.platforms.sagemaker.folders import (
    DEFAULT_BASE,
    SageMakerFolders,
    SageMakerTree,
    make_checkpoint_path,
)
from headrace.platforms.script_contract import ContractName, ScriptContract, script_arguments
from headrace.platforms.training_job import HostResources
from headrace.platforms.vertex import VERTEX_FOLDERS, vertex_paths

_MAX_VARIABLE_BYTES = 128 * 1024  # of one variable or argument: MAX_ARG_STRLEN, <linux/binfmts.h>
_HOSTS_FILE = Path("/etc/hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnvironment:
    """What the script on a host gets.

    Attributes:
        environment: Variables, beside those that it has anyway.
        arguments: Those before the user's own.
        folder: Where it starts; None: where it would anyway.
        places: Folders and files that it sees elsewhere, by the place where it does.
        tree: SageMaker's folders, where they are part of it.
        runs_once: The script is no rank here, though torchrun starts it.
        held: What holds its channels while the job runs.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    folder: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    tree: SageMakerTree | None = None
    runs_once: bool = False
    held: tuple[ActiveChannels, ...] = ()

    def placed(self, command: Sequence[str]) -> list[str]:
        """Return the command line by which a command sees what it is to see."""
        if not self.places:
            return list(command)
        return namespace_command(sys.executable, dict(self.places), command)

    def failure(self) -> str | None:
        """Return why the script did not get all of a channel; None: nothing is known of that."""
        return next(filter(None, (each.failure() for each in self.held)), None)

    def verdict(self, exit_code: int) -> int:
        """Return how the job ended: as a failure where a channel failed, whatever the script did.

        Args:
            exit_code: The script's.
        """
        failure = self.failure()
        if failure is None:
            return exit_code
        print_status(f"headrace: {failure}\n")
        return StorageError.exit_code

    def note_end(self, exit_code: int, command: Sequence[str], told: str) -> None:
        """Leave a note of how the script ended, where the contract has one; let channels go."""
        for each in self.held:
            each.end(exit_code)
        if self.tree is not None:
            try:
                self.tree.note_end(exit_code, shlex.join(command), told)
            except OSError as error:  # a full disk must not cost the script's own exit code
                print_status(f"headrace: {self.tree.folders.failure}: {error}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What a site is made of.

    Attributes:
        script: The script, and its host.
        addresses: Those of all hosts, by their names.
        folder: Where what belongs to the host lies; it is made.
        output: Where the hosts of a job on Vertex AI leave what they make.
        code: The folder of the script's code.
        is_code_named: The user named it: the script starts there, whatever tells it of its job.
        channels: Where the data of each channel are: a folder or a file, or, where they are read
            from pipes, a path or a URL.
        places: Folders that the script sees elsewhere, beside those of its contract, by the place.
        checkpoints_at: Where it sees its checkpoints, too; None: nowhere else.
    """

    script: ScriptContract
    addresses: Mapping[str, str]
    folder: Path
    output: Path
    code: Path
    is_code_named: bool
    channels: Mapping[str, str]
    places: Mapping[str, str] = field(default_factory=dict)
    checkpoints_at: str | None = None

    @property
    def base(self) -> Path:
        """What is /opt/ml to scripts of SageMaker's."""
        return self.folder / "ml"


def variables_before_channels(
    request: EnvironmentSpec, machine: HostResources, *, can_bind_mount: bool
) -> dict[str, str]:
    """Return what the script is told whatever its channels are; see `build_environment`."""
    seen = SageMakerFolders() if can_bind_mount else SageMakerFolders(str(request.base))
    return request.script.variables(seen, vertex_paths(str(request.output), {}), machine)


def build_environment(
    request: EnvironmentSpec, machine: HostResources, *, can_bind_mount: bool
) -> ScriptEnvironment:
    """Lay out the folders of a host and return what its script gets.

    Args:
        request: What it is made of.
        machine: What the host has.
        can_bind_mount: Whether a process of this host may have a view of files of its own.

    Raises:
        UsageError: The script cannot be told so much, or not see its checkpoints where it wants to.
        OSError: The folders cannot be made.
    """
    script, tree, places = request.script, None, dict(request.places)
    seen = SageMakerFolders()
    environment: dict[str, str] = {}
    if script.is_sagemakers:
        tree = SageMakerTree(request.base)
        tree.lay_out(script.job, script.host, machine, code=request.code, channels=request.channels)
        if can_bind_mount:
            places[DEFAULT_BASE] = tree.folders.base
        else:
            seen = tree.folders
        if request.checkpoints_at is not None:
            make_checkpoint_path(
                request.checkpoints_at, request.base, can_bind_mount=can_bind_mount
            )
            places[request.checkpoints_at] = tree.folders.checkpoints
        environment = {**_smddp_variables(), **_streamed_channels(request, seen)}
    if "vertex" in script.contracts:
        for name in VERTEX_FOLDERS:
            (request.output / name).mkdir(parents=True, exist_ok=True)
    if can_bind_mount:
        places[str(_HOSTS_FILE)] = str(_write_hosts(request))
    places_told = vertex_paths(str(request.output), request.channels)
    told = script.variables(seen, places_told, machine)
    _check_lengths({**told, "its arguments": max(script.arguments(), key=len, default="")}, script)
    return ScriptEnvironment(
        environment={**_unset_variables(told), **environment},
        arguments=tuple(script.arguments()),
        folder=str(request.code) if tree is not None or request.is_code_named else None,
        places=places,
        tree=tree,
    )


def _check_lengths(told: Mapping[str, str], script: ScriptContract) -> None:
    """Raise UsageError where the kernel would not pass on what the script is told."""
    for name, value in told.items():
        count = len(name.encode()) + len(value.encode()) + 2  # "=" and the zero at the end
        if count > _MAX_VARIABLE_BYTES:
            values = script.job.hyperparameters
            longest = max(values, key=lambda each: len(str(values[each])), default="")
            raise UsageError(
                f"{name} would take {count:,} bytes, and a process gets {_MAX_VARIABLE_BYTES:,} "
                "at most. "
                f"Shorten the hyperparameters, {longest} first: put it into a file of a channel."
            )


def program_command(program: str, arguments: Sequence[str], site: ScriptEnvironment) -> list[str]:
    """Return the command line of a program that is not Python's.

    Its own arguments come first: the script's name may be the first of them, as in `bash train.sh`.

    Args:
        program: A path, or a name that is looked up.
        arguments: The user's.
        site: What it gets.
    """
    found = str(Path(program).absolute()) if site.folder and Path(program).exists() else program
    return [found, *arguments, *site.arguments]


def _unset_variables(told: Mapping[str, str]) -> dict[str, str]:
    """Leave to this process's own variables what the contract has no value for, and NCCL's."""
    own = env.values_of(told)
    return {
        name: value
        for name, value in told.items()
        if not own[name] or (value and not name.startswith("NCCL_"))
    }


def existing_job_environment(
    contracts: Sequence[ContractName], hyperparameters: Mapping[str, Any], *, has_ranks: bool,
    folder: str | None,
) -> ScriptEnvironment:  # fmt: skip
    """Return what the script gets within a job that others have started: nearly all is there.

    Args:
        contracts: By which it is told of that job.
        hyperparameters: Those of the command line; the job's own reach whoever it started.
        has_ranks: This host is one of those that train.
        folder: Where the script starts; None: where it would anyway.
    """
    return ScriptEnvironment(
        environment=_smddp_variables()
        if any(name.startswith("sagemaker") for name in contracts)
        else {},
        arguments=tuple(script_arguments(contracts, hyperparameters)),
        folder=folder,
        runs_once=not has_ranks,
    )


def _streamed_channels(request: EnvironmentSpec, seen: SageMakerFolders) -> dict[str, str]:
    """Return the variable by which ShardDataset reads a channel in pipes where it is."""
    urls = {
        seen.channel(channel.name): request.channels[channel.name]
        for channel in request.script.job.channels_of(request.script.host)
        if channel.mode == "Pipe"
    }
    return {env.PIPE_CHANNELS.name: json.dumps(urls)} if urls else {}


def _smddp_variables() -> dict[str, str]:
    """Return the variables by which a script may import SageMaker's library."""
    return {env.SMDDP.name: "1", env.PYTHONPATH.name: env.pythonpath_with(SITECUSTOMIZE_DIR)}


def _write_hosts(request: EnvironmentSpec) -> Path:
    """Write this machine's /etc/hosts with the job's hosts in it."""
    own = _HOSTS_FILE.read_text() if _HOSTS_FILE.exists() else ""
    lines = [f"{address}\t{host}\n" for host, address in request.addresses.items()]
    request.folder.mkdir(parents=True, exist_ok=True)
    file = request.folder / "hosts"
    file.write_text(f"{own.rstrip()}\n{''.join(lines)}")
    return file


_DEPENDENCIES = "dependencies"


def with_script_options(
    site: ScriptEnvironment, options: ScriptOptions, folder: Path
) -> ScriptEnvironment:
    """Return a site with the script's own variables, and its dependencies to be imported.

    Args:
        site: What the script gets by its contracts.
        options: What the command line asks for beside it.
        folder: The run's; links to the dependencies lie there.

    Raises:
        UsageError: A variable contradicts what the contract says, or two dependencies one another.
        LaunchError: The links cannot be made.
    """
    if not options.environment and not options.dependencies:
        return site
    check_environment(options.environment, site.environment)
    paths = [site.environment.get(env.PYTHONPATH.name) or env.PYTHONPATH.get()]
    paths.insert(0, options.environment.get(env.PYTHONPATH.name))
    if options.dependencies:
        paths.append(str(_link_dependencies(options.dependencies, folder / _DEPENDENCIES)))
    joined = ":".join(path for path in paths if path)
    beside = {env.PYTHONPATH.name: joined} if joined else {}
    return replace(site, environment={**site.environment, **options.environment, **beside})


def check_environment(environment: Mapping[str, str], told: Mapping[str, str]) -> None:
    """Raise UsageError where a variable of the command line contradicts what the contract says.

    Args:
        environment: The command line's.
        told: What the script is told, by the variables' names.
    """
    for name, value in environment.items():
        if told.get(name, value) != value and name != env.PYTHONPATH.name:
            raise UsageError(
                f"--environment {name}={value}: the contract says {name}={told[name]}. Leave it "
                "out, or take another name."
            )


def join_environments(
    site: Mapping[str, str | None], recorded: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return the variables of a script that is recorded; what both put on the path, it has."""
    paths = [recorded.get(env.PYTHONPATH.name), site.get(env.PYTHONPATH.name)]
    entries = dict.fromkeys(part for path in paths if path for part in path.split(":"))
    beside = {env.PYTHONPATH.name: ":".join(entries)} if entries else {}
    return {**site, **recorded, **beside}


def _link_dependencies(dependencies: tuple[str, ...], folder: Path) -> Path:
    """Return a folder in which each dependency is found by its own name, as in SageMaker's code."""
    places: dict[str, str] = {}
    for path in dependencies:
        name = Path(path).name
        if places.setdefault(name, path) != path:
            raise UsageError(
                f"--dependency {path} and --dependency {places[name]} have one name: a script "
                "could import one of them alone. Rename one."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in places.items():
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
