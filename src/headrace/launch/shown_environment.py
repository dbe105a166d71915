"""What a script of a job would be told, without a job: for `headrace cluster env`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.contracts.groups import Group
from headrace.contracts.sagemaker_folders import SageMakerFolders
from headrace.contracts.script import Script
from headrace.contracts.training_job import Channel, Machine, TrainingJob
from headrace.contracts.vertex_variables import VertexPlaces
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.site_plan import plan_sites

_ADDRESS = "127.0.0.{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEnvironment:
    """What a script gets on one host.

    Attributes:
        host: The host.
        hosts: All of the job's.
        variables: Those that contracts add, by their names.
        arguments: Those before the user's own.
    """

    host: str
    hosts: tuple[str, ...]
    variables: dict[str, str]
    arguments: list[str]


def show_environment(
    options: ContractOptions,
    groups: Sequence[Group],
    *,
    host: str | None,
    job: str,
    script: str,
    cores: int,
) -> ShownEnvironment:
    """Return what a script would get on a host.

    Args:
        options: What it is to be told.
        groups: The job's instance groups, the one that trains first.
        host: The host; None: the first one.
        job: The job's name.
        script: Its path.
        cores: Of a host whose group does not say.

    Raises:
        UsageError: There is no such host.
    """
    plan = plan_sites(
        job,
        {
            group.name: (
                "local_gpu" if group.gpus else "local",
                [_ADDRESS.format(number + 2) for number in range(group.hosts)],
            )
            for group in groups
        },
        distribution=options.distribution,
        distributed=groups[0].name,
        may_place=True,
    )
    told = TrainingJob(
        name=plan.job,
        groups=plan.groups,
        entry_point=Path(script).name,
        distribution=plan.distribution,
        distributed=plan.distributed,
        channels=tuple(Channel(name=name) for name in sorted(options.channels)),
        hyperparameters=options.hyperparameters,
        submitted=options.source_dir or str(Path(script).parent),
    )
    here = host or told.hosts[0]
    group = next(each for each in groups if each.name == told.group_of(here).name)
    folders = SageMakerFolders()
    shown = Script(contracts=options.contracts, job=told, host=here)
    data = {name: folders.channel(name) for name in options.channels}
    machine = Machine(cpus=group.cpus or cores, gpus=group.gpus or 0, interface="lo")
    return ShownEnvironment(
        host=here,
        hosts=told.hosts,
        variables=shown.variables(
            folders, VertexPlaces(output=f"runs/{job}/output", data=data), machine
        ),
        arguments=shown.arguments(),
    )
