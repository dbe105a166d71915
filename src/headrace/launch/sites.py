"""What a script on one host gets by its contracts: variables, arguments, and folders in place."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.contracts.sagemaker_arguments import sagemaker_arguments, sagemaker_v3_arguments
from headrace.contracts.sagemaker_folders import USUAL_BASE, SageMakerFolders
from headrace.contracts.sagemaker_variables import sagemaker_v3_variables, sagemaker_variables
from headrace.contracts.training_job import Machine, TrainingJob
from headrace.contracts.vertex_variables import VertexPlaces, vertex_arguments, vertex_variables
from headrace.core import env
from headrace.core.placed import placed_command
from headrace.core.places import SITE
from headrace.launch.contract_flags import ContractName
from headrace.launch.sagemaker_tree import SageMakerTree
from headrace.launch.told import tell

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
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    folder: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    tree: SageMakerTree | None = None

    def placed(self, command: Sequence[str]) -> list[str]:
        """Return the command line by which a command sees what it is to see."""
        if not self.places:
            return list(command)
        return placed_command(sys.executable, dict(self.places), command)

    def note_end(self, exit_code: int, command: Sequence[str], told: str) -> None:
        """Leave a note of how the script ended, where the contract has one."""
        if self.tree is not None:
            try:
                self.tree.note_end(exit_code, shlex.join(command), told)
            except OSError as error:  # a full disk must not cost the script's own exit code
                tell(f"headrace: {self.tree.folders.failure}: {error}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRequest:
    """What a site is made of.

    Attributes:
        contracts: By which the script is told of its job.
        job: What all hosts are told.
        host: The site's.
        addresses: Those of all hosts, by their names.
        folder: Where what belongs to the host lies; it is made.
        output: Where the hosts of a job on Vertex AI leave what they make.
        code: The folder of the script's code.
        channels: Where the data of each channel are.
    """

    contracts: tuple[ContractName, ...]
    job: TrainingJob
    host: str
    addresses: Mapping[str, str]
    folder: Path
    output: Path
    code: Path
    channels: Mapping[str, Path]


def make_site(request: SiteRequest, machine: Machine, *, may_place: bool) -> Site:
    """Lay out the folders of a host and return what its script gets.

    Args:
        request: What it is made of.
        machine: What the host has.
        may_place: Whether a process of this host may have a view of files of its own.
    """
    environment: dict[str, str] = {}
    folder, tree, places = None, None, {}
    if "vertex" in request.contracts:
        environment |= _vertex(request)
    sdk = next((name for name in request.contracts if name.startswith("sagemaker")), None)
    if sdk is not None:
        tree = SageMakerTree(request.folder / "ml")
        tree.lay_out(
            request.job, request.host, machine,
            code=request.code, channels=request.channels,
        )  # fmt: skip
        seen = SageMakerFolders() if may_place else tree.folders
        told = sagemaker_v3_variables if sdk == "sagemaker-v3" else sagemaker_variables
        environment |= told(request.job, request.host, seen, machine)
        environment |= {env.SMDDP.name: "1", env.PYTHONPATH.name: env.path_with(SITE)}
        folder = str(request.code)
        if may_place:
            places[USUAL_BASE] = tree.folders.base
    if request.contracts and may_place:
        places[str(_HOSTS_FILE)] = str(_write_hosts(request))
    return Site(
        environment=environment,
        arguments=tuple(_arguments(request)),
        folder=folder,
        places=places,
        tree=tree,
    )


def _arguments(request: SiteRequest) -> list[str]:
    values = request.job.hyperparameters
    if "sagemaker" in request.contracts:
        return sagemaker_arguments(values)
    if "vertex" in request.contracts and "sagemaker-v3" not in request.contracts:
        return vertex_arguments(values)
    return sagemaker_v3_arguments(values)


def _vertex(request: SiteRequest) -> dict[str, str]:
    places = VertexPlaces(
        output=str(request.output),
        data={name: str(path) for name, path in request.channels.items()},
    )
    for name in ("model", "checkpoints", "logs"):
        (request.output / name).mkdir(parents=True, exist_ok=True)
    return vertex_variables(request.job, request.host, places)


def _write_hosts(request: SiteRequest) -> Path:
    """Write this machine's /etc/hosts with the job's hosts in it."""
    own = _HOSTS_FILE.read_text() if _HOSTS_FILE.exists() else ""
    lines = [f"{address}\t{host}\n" for host, address in request.addresses.items()]
    request.folder.mkdir(parents=True, exist_ok=True)
    file = request.folder / "hosts"
    file.write_text(f"{own.rstrip()}\n{''.join(lines)}")
    return file
