"""The script environment of a job that does not run, for `headrace cluster env`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.data.channels.spec import read_channels
from headrace.jobs.environment.host_environment import host_resources, training_job
from headrace.jobs.environment.host_layout import HostLayout, layout_hosts, layout_single_host
from headrace.jobs.spec import ContractOptions
from headrace.platforms.instance_groups import GroupSpec
from headrace.platforms.sagemaker.folders import SageMakerFolders
from headrace.platforms.script_contract import ScriptContract
from headrace.platforms.vertex import vertex_paths

_ADDRESS = "127.0.0.{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPreview:
    """The variables and arguments of a script on one host."""

    host: str
    hosts: tuple[str, ...]  # all of the job
    variables: dict[str, str]  # those that contracts add, by name
    arguments: list[str]  # those before the user's own


def preview_environment(
    options: ContractOptions,
    groups: Sequence[GroupSpec],
    *,
    host: str | None,
    job: str,
    script: str,
    cores: int,
) -> EnvironmentPreview:
    """Return the environment that a script would get on a host, the first one if None.

    The training group comes first; without groups the job has one host. `cores` are those of a host
    whose group gives none. Raises UsageError where there is no such host.
    """
    code = Path(options.source_dir or Path(script).parent).resolve()
    described = training_job(options, _layout(job, options, groups), Path(script).name, code)
    here = host or described.hosts[0]
    named = {each.name: each for each in groups}
    group = named.get(described.group_of(here).name, GroupSpec(name="only", hosts=1))
    contract = ScriptContract(contracts=options.contracts, job=described, host=here)
    specs = read_channels(options.channels, options.input_modes)
    paths = vertex_paths(
        str(Path("runs", job, "output").resolve()),
        {name: spec.uri for name, spec in specs.items()},
    )
    machine = host_resources(group.cpus or cores, group.gpus or 0)
    return EnvironmentPreview(
        host=here,
        hosts=described.hosts,
        variables=contract.variables(SageMakerFolders(), paths, machine),
        arguments=contract.arguments(),
    )


def _layout(job: str, options: ContractOptions, groups: Sequence[GroupSpec]) -> HostLayout:
    if not groups:
        return layout_single_host(
            job, distribution=options.distribution, devices=0, can_bind_mount=True
        )
    return layout_hosts(
        job,
        {
            group.name: (
                group.instance_type or ("local_gpu" if group.gpus else "local"),
                [_ADDRESS.format(number + 2) for number in range(group.hosts)],
            )
            for group in groups
        },
        distribution=options.distribution,
        distributed=groups[0].name,
        can_bind_mount=True,
    )
