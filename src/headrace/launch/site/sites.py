"""What a script on one host gets by its contracts: variables, arguments, and folders in place."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.contracts.sagemaker_folders import USUAL_BASE, SageMakerFolders
from headrace.contracts.script import ContractName, Script, script_arguments
from headrace.contracts.training_job import Machine
from headrace.contracts.vertex_variables import VERTEX_FOLDERS
from headrace.core import env
from headrace.core.errors import StorageError, UsageError
from headrace.core.placed import placed_command
from headrace.core.places import SITE
from headrace.launch.channels.holding import Held
from headrace.launch.site.checkpoint_place import make_place
from headrace.launch.site.sagemaker_tree import SageMakerTree
from headrace.launch.site.vertex_places import vertex_places
from headrace.launch.told import tell

_MOST_BYTES = 128 * 1024  # of one variable or argument: MAX_ARG_STRLEN, <linux/binfmts.h>
_HOSTS_FILE = Path("/etc/hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
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
    held: tuple[Held, ...] = ()

    def placed(self, command: Sequence[str]) -> list[str]:
        """Return the command line by which a command sees what it is to see."""
        if not self.places:
            return list(command)
        return placed_command(sys.executable, dict(self.places), command)

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
        tell(f"headrace: {failure}\n")
        return StorageError.exit_code

    def note_end(self, exit_code: int, command: Sequence[str], told: str) -> None:
        """Leave a note of how the script ended, where the contract has one; let channels go."""
        for each in self.held:
            each.end(exit_code)
        if self.tree is not None:
            try:
                self.tree.note_end(exit_code, shlex.join(command), told)
            except OSError as error:  # a full disk must not cost the script's own exit code
                tell(f"headrace: {self.tree.folders.failure}: {error}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRequest:
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

    script: Script
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


def told_before_channels(
    request: SiteRequest, machine: Machine, *, may_place: bool
) -> dict[str, str]:
    """Return what the script will be told whatever its channels turn out to be; see `make_site`."""
    seen = SageMakerFolders() if may_place else SageMakerFolders(str(request.base))
    return request.script.variables(seen, vertex_places(str(request.output), {}), machine)


def make_site(request: SiteRequest, machine: Machine, *, may_place: bool) -> Site:
    """Lay out the folders of a host and return what its script gets.

    Args:
        request: What it is made of.
        machine: What the host has.
        may_place: Whether a process of this host may have a view of files of its own.

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
        if may_place:
            places[USUAL_BASE] = tree.folders.base
        else:
            seen = tree.folders
        if request.checkpoints_at is not None:
            make_place(request.checkpoints_at, request.base, may_place=may_place)
            places[request.checkpoints_at] = tree.folders.checkpoints
        environment = {**_smddp(), **_streamed(request, seen)}
    if "vertex" in script.contracts:
        for name in VERTEX_FOLDERS:
            (request.output / name).mkdir(parents=True, exist_ok=True)
    if may_place:
        places[str(_HOSTS_FILE)] = str(_write_hosts(request))
    places_told = vertex_places(str(request.output), request.channels)
    told = script.variables(seen, places_told, machine)
    _check_lengths({**told, "its arguments": max(script.arguments(), key=len, default="")}, script)
    return Site(
        environment={**_known(told), **environment},
        arguments=tuple(script.arguments()),
        folder=str(request.code) if tree is not None or request.is_code_named else None,
        places=places,
        tree=tree,
    )


def _check_lengths(told: Mapping[str, str], script: Script) -> None:
    """Raise UsageError where the kernel would not pass on what the script is told."""
    for name, value in told.items():
        count = len(name.encode()) + len(value.encode()) + 2  # "=" and the zero at the end
        if count > _MOST_BYTES:
            values = script.job.hyperparameters
            longest = max(values, key=lambda each: len(str(values[each])), default="")
            raise UsageError(
                f"{name} would take {count:,} bytes, and a process gets {_MOST_BYTES:,} at most. "
                f"Shorten the hyperparameters, {longest} first: put it into a file of a channel."
            )


def program_command(program: str, arguments: Sequence[str], site: Site) -> list[str]:
    """Return the command line of a program that is not Python's.

    Its own arguments come first: the script's name may be the first of them, as in `bash train.sh`.

    Args:
        program: A path, or a name that is looked up.
        arguments: The user's.
        site: What it gets.
    """
    found = str(Path(program).absolute()) if site.folder and Path(program).exists() else program
    return [found, *arguments, *site.arguments]


def _known(told: Mapping[str, str]) -> dict[str, str]:
    """Leave to this process's own variables what the contract has no value for, and NCCL's."""
    own = env.values_of(told)
    return {
        name: value
        for name, value in told.items()
        if not own[name] or (value and not name.startswith("NCCL_"))
    }


def outer_site(
    contracts: Sequence[ContractName], hyperparameters: Mapping[str, Any], *, has_ranks: bool,
    folder: str | None,
) -> Site:  # fmt: skip
    """Return what the script gets within a job that others have started: nearly all is there.

    Args:
        contracts: By which it is told of that job.
        hyperparameters: Those of the command line; the job's own reach whoever it started.
        has_ranks: This host is one of those that train.
        folder: Where the script starts; None: where it would anyway.
    """
    return Site(
        environment=_smddp() if any(name.startswith("sagemaker") for name in contracts) else {},
        arguments=tuple(script_arguments(contracts, hyperparameters)),
        folder=folder,
        runs_once=not has_ranks,
    )


def _streamed(request: SiteRequest, seen: SageMakerFolders) -> dict[str, str]:
    """Return the variable by which ShardDataset reads a channel in pipes where it is."""
    urls = {
        seen.channel(channel.name): request.channels[channel.name]
        for channel in request.script.job.channels_of(request.script.host)
        if channel.mode == "Pipe"
    }
    return {env.STREAMED.name: json.dumps(urls)} if urls else {}


def _smddp() -> dict[str, str]:
    """Return the variables by which a script may import SageMaker's library."""
    return {env.SMDDP.name: "1", env.PYTHONPATH.name: env.path_with(SITE)}


def _write_hosts(request: SiteRequest) -> Path:
    """Write this machine's /etc/hosts with the job's hosts in it."""
    own = _HOSTS_FILE.read_text() if _HOSTS_FILE.exists() else ""
    lines = [f"{address}\t{host}\n" for host, address in request.addresses.items()]
    request.folder.mkdir(parents=True, exist_ok=True)
    file = request.folder / "hosts"
    file.write_text(f"{own.rstrip()}\n{''.join(lines)}")
    return file
