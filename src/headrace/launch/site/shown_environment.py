"""What a script of a job would be told, without a job: for `headrace cluster env`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.contracts.groups import Group
from headrace.contracts.sagemaker_folders import SageMakerFolders
from headrace.contracts.script import Script
from headrace.contracts.training_job import TrainingJob
from headrace.core import env
from headrace.launch.channels.bringing import told_channels
from headrace.launch.channels.channel_flags import read_channels
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.site.host_site import machine_of
from headrace.launch.site.site_plan import SitePlan, plan_only_host, plan_sites
from headrace.launch.site.vertex_places import vertex_places

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
        groups: The job's instance groups, the one that trains first; none: it has one host.
        host: The host; None: the first one.
        job: The job's name.
        script: Its path.
        cores: Of a host whose group does not say.

    Raises:
        UsageError: There is no such host.
    """
    plan = _plan(job, options, groups)
    told = TrainingJob(
        name=plan.job,
        groups=plan.groups,
        entry_point=Path(script).name,
        distribution=plan.distribution,
        distributed=plan.distributed,
        channels=told_channels(options),
        hyperparameters=options.hyperparameters,
        submitted=str(Path(options.source_dir or Path(script).parent).resolve()),
        region=env.AWS_REGION.get() or env.AWS_DEFAULT_REGION.get() or "",
    )
    here = host or told.hosts[0]
    named = {each.name: each for each in groups}
    group = named.get(told.group_of(here).name, Group(name="only", hosts=1))
    folders = SageMakerFolders()
    shown = Script(contracts=options.contracts, job=told, host=here)
    specs = read_channels(options.channels, options.input_modes)
    places = vertex_places(
        str(Path("runs", job, "output").resolve()),
        {name: spec.uri for name, spec in specs.items()},
    )
    machine = machine_of(group.cpus or cores, group.gpus or 0)
    return ShownEnvironment(
        host=here,
        hosts=told.hosts,
        variables=shown.variables(folders, places, machine),
        arguments=shown.arguments(),
    )


def _plan(job: str, options: ContractOptions, groups: Sequence[Group]) -> SitePlan:
    if not groups:
        return plan_only_host(job, distribution=options.distribution, devices=0, may_place=True)
    addresses = {
        group.name: [_ADDRESS.format(number + 2) for number in range(group.hosts)]
        for group in groups
    }
    return plan_sites(
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
        may_place=True,
    )
