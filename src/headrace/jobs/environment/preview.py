"""The script environment of a job that does not run, for `headrace cluster env`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.data.channels.resolve import script_channels
from headrace.data.channels.spec import read_channels
from headrace.jobs.environment.host_environment import host_resources
from headrace.jobs.environment.host_layout import HostLayout, layout_hosts, layout_single_host
from headrace.jobs.spec import ContractOptions
from headrace.platforms.instance_groups import GroupSpec
from headrace.platforms.sagemaker.folders import SageMakerFolders
from headrace.platforms.script_contract import ScriptContract
from headrace.platforms.training_job import TrainingJob
from headrace.platforms.vertex import vertex_paths

_ADDRESS = "127.0.0.{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPreview:
    """The variables and arguments of a script on one host.

    Attributes:
        host: The host.
        hosts: All hosts of the job.
        variables: The variables that contracts add, by name.
        arguments: The arguments before the user's own.
    """

    host: str
    hosts: tuple[str, ...]
    variables: dict[str, str]
    arguments: list[str]


def preview_environment(
    options: ContractOptions,
    groups: Sequence[GroupSpec],
    *,
    host: str | None,
    job: str,
    script: str,
    cores: int,
) -> EnvironmentPreview:
    """Return the environment that a script would get on a host.

    Args:
        options: The contract options.
        groups: The job's instance groups, the training group first; empty: one host.
        host: The host; None: the first one.
        job: The job's name.
        script: The script's path.
        cores: CPU cores of a host whose group gives none.

    Raises:
        UsageError: There is no such host.
    """
    layout = _layout(job, options, groups)
    training_job = TrainingJob(
        name=layout.job,
        groups=layout.groups,
        entry_point=Path(script).name,
        distribution=layout.distribution,
        distributed=layout.distributed,
        channels=script_channels(options),
        hyperparameters=options.hyperparameters,
        submitted=str(Path(options.source_dir or Path(script).parent).resolve()),
        region=env.AWS_REGION.get() or env.AWS_DEFAULT_REGION.get() or "",
    )
    here = host or training_job.hosts[0]
    named = {each.name: each for each in groups}
    group = named.get(training_job.group_of(here).name, GroupSpec(name="only", hosts=1))
    folders = SageMakerFolders()
    contract = ScriptContract(contracts=options.contracts, job=training_job, host=here)
    specs = read_channels(options.channels, options.input_modes)
    places = vertex_paths(
        str(Path("runs", job, "output").resolve()),
        {name: spec.uri for name, spec in specs.items()},
    )
    machine = host_resources(group.cpus or cores, group.gpus or 0)
    return EnvironmentPreview(
        host=here,
        hosts=training_job.hosts,
        variables=contract.variables(folders, places, machine),
        arguments=contract.arguments(),
    )


def _layout(job: str, options: ContractOptions, groups: Sequence[GroupSpec]) -> HostLayout:
    if not groups:
        return layout_single_host(
            job, distribution=options.distribution, devices=0, can_bind_mount=True
        )
    addresses = {
        group.name: [_ADDRESS.format(number + 2) for number in range(group.hosts)]
        for group in groups
    }
    return layout_hosts(
        job,
        {
            group.name: (
                group.instance_type or ("local_gpu" if group.gpus else "local"),
                addresses[group.name],
            )
            for group in groups
        },
        distribution=options.distribution,
        distributed=groups[0].name,
        can_bind_mount=True,
    )
