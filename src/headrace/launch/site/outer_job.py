"""A job that SageMaker, Vertex AI or another run of Headrace has started already, around this one.

There `--contract` makes nothing: hosts, ranks, groups, channels and folders are those of that job,
whose variables the script has anyway.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.contracts.contract import told_hosts
from headrace.contracts.groups import Group
from headrace.contracts.sagemaker_folders import USUAL_BASE, SageMakerFolders
from headrace.contracts.sagemaker_variables import MASTER_PORT as SAGEMAKERS_PORT
from headrace.contracts.script import ContractName
from headrace.contracts.strays import strays
from headrace.contracts.told_hosts import ToldHosts
from headrace.contracts.training_group import training_group
from headrace.contracts.vertex_variables import MASTER_PORT as VERTEXS_PORT
from headrace.core import env
from headrace.core.errors import UsageError
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.site.checkpoint_place import FLAG as PLACE_FLAG
from headrace.launch.told import tell

_USUAL_ADDRESS = "127.0.0.1"  # torchrun's own default for --master-addr
_OURS_TO_SET = ("HEADRACE_", "PYTHON", "MASTER_", "NCCL_")
_RANKS_OWN = ("RANK", "WORLD_SIZE")
_SERVICES = {"sagemaker": "SageMaker", "sagemaker-v3": "SageMaker", "vertex": "Vertex AI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterJob:
    """Such a job, as this host sees it.

    Attributes:
        told: Its hosts.
        port: Where those that train meet, on the first of them.
        named: The group that trains, where the command line says so.
    """

    told: ToldHosts
    port: int
    named: str | None

    @property
    def training(self) -> tuple[str, ...]:
        """The hosts that have ranks; raises UsageError where nothing says which."""
        return _training(self.told, self.named)

    @property
    def has_ranks_here(self) -> bool:
        """Whether this host is one of those that have ranks."""
        return self.told.here in self.training

    def has_group(self, group: Group) -> bool:
        """Whether a group that the command line names is one of the job's."""
        return any(
            each.name == group.name and len(each.hosts) == group.hosts for each in self.told.groups
        )

    def apply(self, args: argparse.Namespace, *, has_ranks: bool) -> None:
        """Have torchrun meet the job's other hosts, unless its own flags say whom to meet.

        Args:
            args: torchrun's, which are changed.
            has_ranks: Something asks for ranks at all.
        """
        if not has_ranks or not self.has_ranks_here:  # the script runs once: see `without_ranks`
            args.nnodes, args.nproc_per_node, args.standalone = "1", "1", True
            return
        if len(self.training) < 2 or args.nnodes != "1:1" or args.rdzv_endpoint:
            return
        args.nnodes = str(len(self.training))
        args.node_rank = self.training.index(self.told.here)
        if args.master_addr == _USUAL_ADDRESS:
            args.master_addr = self.training[0]
        args.master_port = args.master_port or self.port
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "static", "", "none"


TORCHRUNS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""What torchrun tells a rank."""


def without_ranks() -> list[str]:
    """Return the command by which a script under torchrun has the variables of this process."""
    own = env.values_of(TORCHRUNS)
    removed = [part for name, value in own.items() if value is None for part in ("-u", name)]
    return ["env", *removed, *(f"{name}={value}" for name, value in own.items() if value)]


def resource_config() -> str | None:
    """Return what is in SageMaker's resourceconfig.json on this host; None: there is none."""
    folders = SageMakerFolders(env.SAGEMAKER_BASE_DIR.get() or USUAL_BASE)
    try:
        return (Path(folders.config) / "resourceconfig.json").read_text()
    except OSError:
        return None


def with_job_around(options: ContractOptions) -> ContractOptions:
    """Return options as if they named the contract of the job around this process, and tell of it.

    They stay where they name any, where there is no such job, and within a run of Headrace: what
    started that one has taken the hosts.

    Args:
        options: What the command line says.
    """
    if options.contracts or env.RUN_DIR.get():
        return options
    variables = env.values_of([variable.name for variable in env.HOSTS_OF_THE_JOB])
    try:
        if told_hosts(variables, resource_config()) is None:
            return options
    except UsageError as error:
        tell(f"headrace: this is taken for no job of SageMaker's or Vertex AI's: {error}\n")
        return options
    name: ContractName = "sagemaker"
    if variables[env.CLUSTER_SPEC.name]:
        name = "vertex"
    elif variables[env.SM_HOST_COUNT.name]:  # SDK 2's containers know no such variable
        name = "sagemaker-v3"
    tell(
        f"headrace: started within a job of {_SERVICES[name]}, so as with --contract {name}; "
        "--contract torchrun leaves that job alone\n"
    )
    return replace(options, contracts=(name,))


def find_outer_job(options: ContractOptions, training: str | None = None) -> OuterJob | None:
    """Return the job around this one by a contract that is asked for; None: there is none.

    Args:
        options: What the script is to be told.
        training: The group that trains, where the command line says so.

    Raises:
        UsageError: What tells of it contradicts itself, or the flags contradict it.
    """
    asked = {name.partition("-")[0] for name in options.contracts}
    variables = env.values_of([variable.name for variable in env.HOSTS_OF_THE_JOB])
    if "vertex" not in asked:
        variables[env.CLUSTER_SPEC.name] = None
    if "sagemaker" not in asked:
        variables = {env.CLUSTER_SPEC.name: variables[env.CLUSTER_SPEC.name]}
    try:
        told = told_hosts(variables, resource_config() if "sagemaker" in asked else None)
    except UsageError as error:
        raise UsageError(
            f"{error} Where this host is in no job of theirs, unset these variables: --contract "
            "makes what the script is told."
        ) from error
    if told is None:
        return None
    if options.channels:
        name = next(iter(options.channels))
        raise UsageError(
            f"--channel {name}=...: this is host {told.here} of a job that has its channels "
            "already. Leave the flag out, or unset the variables of that job."
        )
    if options.checkpoint_local_path is not None:
        raise UsageError(
            f"{PLACE_FLAG} {options.checkpoint_local_path}: this is host {told.here} of a job that "
            "has its checkpoints' folder already. Leave the flag out, or unset the variables of "
            "that job."
        )
    is_vertex = variables[env.CLUSTER_SPEC.name] is not None
    return OuterJob(
        told=told,
        port=VERTEXS_PORT if is_vertex else SAGEMAKERS_PORT,
        named=training,
    )


def check_variables(told: Mapping[str, str]) -> None:
    """Raise UsageError where a variable of this process says other than a script is to be told.

    So does one of its contracts' of which it is to be told nothing.

    Args:
        told: What it is to be told, by the variables' names.
    """
    for name, value in told.items():
        if _is_replaced(name):
            continue
        own = env.values_of([name])[name]
        if own and value and own != value:  # an empty one says that nobody knows
            raise UsageError(
                f"{name} is set to {own!r} here, and the contract would tell the script "
                f"{value!r}. Unset it, or leave out --contract to have the script see yours."
            )
    left = [name for name in strays(told, env.whole_environment()) if not _is_replaced(name)]
    if left:
        others = f", and {len(left) - 1} more: {', '.join(left[1:])}" if left[1:] else ""
        raise UsageError(
            f"{left[0]} is set here{others}; the contract has no such variable for this job, and "
            "the script would find another job's. Unset all such; what you mean the script to "
            "have beside, name by --environment NAME=VALUE."
        )


def _is_replaced(name: str) -> bool:
    """Whether a variable is set anew for the script, or left to it, whatever it says here."""
    return name.startswith(_OURS_TO_SET) or name in _RANKS_OWN


def _training(told: ToldHosts, training: str | None) -> tuple[str, ...]:
    """Return the hosts that have ranks: of the group that trains, or of the primary pools."""
    hosts: Sequence[str] = told.primary or told.hosts
    if told.groups:
        group = training_group(
            told.groups, flagged=training, head=None, told=told.training, offload=None
        )
        hosts = group.hosts
    # Stable: the head first, then the others in their order.
    return tuple(sorted(hosts, key=lambda host: host != told.head))
