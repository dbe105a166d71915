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


def preview_environment(
    options: ContractOptions,
    groups: Sequence[GroupSpec],
    *,
    host: str | None,
    job: str,
    script: str,
    cores: int,
) -> EnvironmentPreview:
    """Return what a script would get on a host.

    Args:
        options: What it is to be told.
        groups: The job's instance groups, the one that trains first; none: it has one host.
        host: The host; None: the first one.
        job: The job's name.
        script: Its path.
        cores: Of a host whose group does not say.

    Raises:
        UsageError: There is no such host.
    """
    plan = _layout(job, options, groups)
    told = TrainingJob(
        name=plan.job,
        groups=plan.groups,
        entry_point=Path(script).name,
        distribution=plan.distribution,
        distributed=plan.distributed,
        channels=script_channels(options),
        hyperparameters=options.hyperparameters,
        submitted=str(Path(options.source_dir or Path(script).parent).resolve()),
        region=env.AWS_REGION.get() or env.AWS_DEFAULT_REGION.get() or "",
    )
    here = host or told.hosts[0]
    named = {each.name: each for each in groups}
    group = named.get(told.group_of(here).name, GroupSpec(name="only", hosts=1))
    folders = SageMakerFolders()
    shown = ScriptContract(contracts=options.contracts, job=told, host=here)
    specs = read_channels(options.channels, options.input_modes)
    places = vertex_paths(
        str(Path("runs", job, "output").resolve()),
        {name: spec.uri for name, spec in specs.items()},
    )
    machine = host_resources(group.cpus or cores, group.gpus or 0)
    return EnvironmentPreview(
        host=here,
        hosts=told.hosts,
        variables=shown.variables(folders, places, machine),
        arguments=shown.arguments(),
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
