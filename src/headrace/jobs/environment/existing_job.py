"""The existing SageMaker, Vertex AI or Headrace job that this process runs in.

In such a job `--contract` creates nothing: hosts, ranks, groups, channels and folders are those of
that job, whose variables the script inherits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.jobs.spec import ContractOptions, SyncOptions
from headrace.platforms.cluster_hosts import job_topology
from headrace.platforms.sagemaker import CHECKPOINT_PATH_FLAG, DEFAULT_BASE, SageMakerFolders
from headrace.platforms.sagemaker import MASTER_PORT as SAGEMAKERS_PORT
from headrace.platforms.script_contract import ContractName, conflicting_variables
from headrace.platforms.training_job import JobTopology, training_group
from headrace.platforms.vertex import MASTER_PORT as VERTEXS_PORT
from headrace.records.redaction import shown_value

_DEFAULT_ADDRESS = "127.0.0.1"  # torchrun's own default for --master-addr
_REPLACED_PREFIXES = ("HEADRACE_", "PYTHON", "MASTER_", "NCCL_")
_RANK_VARIABLES = ("RANK", "WORLD_SIZE")
# What the services do by themselves with checkpoints and with outputs.
_SAGEMAKERS_UPLOADS = (
    "SageMaker copies /opt/ml/checkpoints to the job's checkpoint_s3_uri, if it has one",
    "SageMaker uploads /opt/ml/model and /opt/ml/output to the job's output_path",
)
_VERTEXS_UPLOADS = (
    "on Vertex AI AIP_CHECKPOINT_DIR lies in the job's base_output_dir",
    "on Vertex AI AIP_MODEL_DIR lies in the job's base_output_dir",
)
_SERVICES = {"sagemaker": "SageMaker", "sagemaker-v3": "SageMaker", "vertex": "Vertex AI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingJob:
    """An existing job, as seen from this host."""

    topology: JobTopology
    port: int  # for the rendezvous, on the first training host
    training_group: str | None  # the one that the command line names

    @property
    def training(self) -> tuple[str, ...]:
        """The hosts that have ranks; raises UsageError where that is undetermined."""
        topology, named = self.topology, self.training_group
        hosts: Sequence[str] = topology.primary or topology.hosts  # the primary pools of Vertex AI
        if topology.groups:
            group = training_group(
                topology.groups, flagged=named, head=None, platform=topology.training, offload=None
            )
            hosts = group.hosts
        # Stable: the head first, then the others in their order.
        return tuple(sorted(hosts, key=lambda host: host != topology.head))

    @property
    def has_local_ranks(self) -> bool:
        """Whether this host is one of those that have ranks."""
        return self.topology.here in self.training

    def apply(self, args: argparse.Namespace, *, has_ranks: bool) -> None:
        """Set the rendezvous with the job's other hosts in torchrun's arguments, where unset."""
        if not has_ranks or not self.has_local_ranks:
            # The script runs once: see `command_without_rank_variables`.
            args.nnodes, args.nproc_per_node, args.standalone = "1", "1", True
            return
        if len(self.training) < 2 or args.nnodes != "1:1" or args.rdzv_endpoint:
            return
        args.nnodes = str(len(self.training))
        args.node_rank = self.training.index(self.topology.here)
        if args.master_addr == _DEFAULT_ADDRESS:
            args.master_addr = self.training[0]
        args.master_port = args.master_port or self.port
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "static", "", "none"


TORCHRUN_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""The variables that torchrun sets for a rank."""


def command_without_rank_variables() -> list[str]:
    """Return the command that gives a script under torchrun this process's rank variables."""
    own = env.values_of(TORCHRUN_VARIABLES)
    removed = [part for name, value in own.items() if value is None for part in ("-u", name)]
    return ["env", *removed, *(f"{name}={value}" for name, value in own.items() if value)]


def read_resource_config() -> str | None:
    """Return the text of SageMaker's resourceconfig.json on this host; None: there is none."""
    folders = SageMakerFolders(env.SAGEMAKER_BASE_DIR.get() or DEFAULT_BASE)
    try:
        return (Path(folders.config) / "resourceconfig.json").read_text()
    except OSError:
        return None


def with_detected_contract(options: ContractOptions) -> ContractOptions:
    """Return options with the contract of the job around this process, and print that.

    They stay the same where they name a contract, where there is no such job, and inside a run of
    Headrace, whose launcher already uses the hosts.
    """
    if options.contracts or env.RUN_DIR.get():
        return options
    variables = env.values_of([variable.name for variable in env.HOST_LIST_VARIABLES])
    try:
        if job_topology(variables, read_resource_config()) is None:
            return options
    except UsageError as error:
        print_status(f"this is taken for no job of SageMaker's or Vertex AI's: {error}")
        return options
    name: ContractName = "sagemaker"
    if variables[env.CLUSTER_SPEC.name]:
        name = "vertex"
    elif variables[env.SM_HOST_COUNT.name]:  # SDK 2's containers know no such variable
        name = "sagemaker-v3"
    print_status(
        f"started within a job of {_SERVICES[name]}, so as with --contract {name}; "
        "--contract torchrun leaves that job alone"
    )
    return replace(options, contracts=(name,))


def find_existing_job(
    options: ContractOptions, sync: SyncOptions, training: str | None = None
) -> ExistingJob | None:
    """Return the existing job around this process, if a given contract names its platform.

    `training` is the training group that the command line names. Raises UsageError where the job's
    variables contradict each other or the flags.
    """
    wanted = {name.partition("-")[0] for name in options.contracts}
    variables = env.values_of([variable.name for variable in env.HOST_LIST_VARIABLES])
    if "vertex" not in wanted:
        variables[env.CLUSTER_SPEC.name] = None
    if "sagemaker" not in wanted:
        variables = {env.CLUSTER_SPEC.name: variables[env.CLUSTER_SPEC.name]}
    try:
        job = job_topology(variables, read_resource_config() if "sagemaker" in wanted else None)
    except UsageError as error:
        raise UsageError(
            f"{error} Where this host is in no job of theirs, unset these variables: --contract "
            "makes what the script gets."
        ) from error
    if job is None:
        return None
    is_vertex = variables[env.CLUSTER_SPEC.name] is not None
    for flag, existing in _contradicting_flags(options, sync, is_vertex=is_vertex):
        raise UsageError(
            f"{flag}: this is host {job.here} of a job that has its {existing}. Leave the flag "
            "out, or unset the variables of that job."
        )
    port = VERTEXS_PORT if is_vertex else SAGEMAKERS_PORT
    return ExistingJob(topology=job, port=port, training_group=training)


def _contradicting_flags(
    options: ContractOptions, sync: SyncOptions, *, is_vertex: bool
) -> Iterator[tuple[str, str]]:
    """Yield flags about what an existing job has, and what it has."""
    from headrace.data.storage.urls import safe_url  # few jobs are in another

    for name in options.channels:
        yield f"--channel {name}=...", "channels already"
    if options.checkpoint_local_path is not None:
        path = f"{CHECKPOINT_PATH_FLAG} {options.checkpoint_local_path}"
        yield path, "checkpoints' folder already"
    checkpoints, outputs = _VERTEXS_UPLOADS if is_vertex else _SAGEMAKERS_UPLOADS
    if sync.checkpoint_uri is not None:
        flag = f"--checkpoint-uri {safe_url(sync.checkpoint_uri)}"
        yield flag, f"checkpoints' folder already: {checkpoints}"
    if sync.output_path is not None:
        flag = f"--output-path {safe_url(sync.output_path)}"
        yield flag, f"output folders already: {outputs}"


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise UsageError where this process's variables contradict the contract's.

    That includes variables that the contract would leave unset for this job.
    """
    for name, value in variables.items():
        if _is_replaced(name):
            continue
        own = env.values_of([name])[name]
        if own and value and own != value:  # an empty value means unknown
            here, there = shown_value(own, name), shown_value(value, name)
            raise UsageError(
                f"{name} is set to {here} here, and the contract would tell the script {there}. "
                "Unset it, or leave out --contract to have the script see yours."
            )
    left = [
        name
        for name in conflicting_variables(variables, env.whole_environment())
        if not _is_replaced(name)
    ]
    if left:
        others = f", and {len(left) - 1} more: {', '.join(left[1:])}" if left[1:] else ""
        raise UsageError(
            f"{left[0]} is set here{others}; the contract has no such variable for this job, and "
            "the script would find another job's. Unset all such; what you mean the script to "
            "have beside, name by --environment NAME=VALUE."
        )


def _is_replaced(name: str) -> bool:
    """Whether the launcher replaces a variable, or passes it on without a check."""
    return name.startswith(_REPLACED_PREFIXES) or name in _RANK_VARIABLES
