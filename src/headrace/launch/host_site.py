"""The site of one host of a job: made on that host, before its script begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from headrace.contracts.sagemaker_folders import USUAL_BASE
from headrace.contracts.script import Script, script_arguments
from headrace.contracts.training_job import Channel, Distribution, Machine, TrainingJob
from headrace.core.errors import LaunchError
from headrace.core.placed import may_place
from headrace.launch.channels import find_channels
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.outer_job import check_variables, find_outer_job
from headrace.launch.site_plan import SitePlan, plan_only_host
from headrace.launch.sites import Site, SiteRequest, make_site, outer_site
from headrace.launch.told import tell


def is_told(options: ContractOptions) -> bool:
    """Whether the script is told of its job by more than torchrun's variables."""
    return bool(set(options.contracts) - {"torchrun"})


def arguments_alone(options: ContractOptions) -> tuple[str, ...]:
    """Return the arguments of a script that is told nothing else."""
    return tuple(script_arguments((), options.hyperparameters))


def only_host_site(
    options: ContractOptions,
    *,
    script: str,
    is_module: bool,
    folder: Path,
    distribution: Distribution | None,
    count_devices: Callable[[], int],
) -> Site:
    """Make the site of a job on this host alone; see `host_site`.

    Args:
        options: What the script is to be told.
        script: Its path, or its module's name.
        is_module: The script is a module's name.
        folder: The run's.
        distribution: What starts the ranks; None: the script runs once.
        count_devices: Returns how many this host has; asked where a script is told of them.

    Raises:
        UsageError: A channel is not there, say.
        LaunchError: The folders cannot be made.
    """
    if not is_told(options):
        return Site(arguments=arguments_alone(options))
    outer = find_outer_job(options)
    if outer is not None:
        tell(f"headrace: this is host {outer.told.here} of a job of {len(outer.told.hosts)}, whose "
             "folders and variables the script gets\n")  # fmt: skip
        return outer_site(
            options.contracts, options.hyperparameters, has_ranks=outer.has_ranks_here
        )
    devices = count_devices()
    plan = plan_only_host(
        folder.name, distribution=distribution, devices=devices, may_place=may_place(USUAL_BASE)
    )
    return host_site(
        options, plan, plan.hosts[0], script=script, is_module=is_module, folder=folder,
        devices=devices,
    )  # fmt: skip


def host_site(
    options: ContractOptions,
    plan: SitePlan,
    host: str,
    *,
    script: str,
    is_module: bool,
    folder: Path,
    devices: int = 0,
    cores: int | None = None,
) -> Site:
    """Make the site of this host.

    Args:
        options: What the script is to be told.
        plan: The job's hosts.
        host: This one, as the plan calls it.
        script: Its path, or its module's name.
        is_module: The script is a module's name.
        folder: The run's, on this host.
        devices: This host's.
        cores: Likewise; None: all that this process may use.

    Raises:
        UsageError: A channel is not there, say.
        LaunchError: The folders cannot be made.
    """
    request = _request(options, plan, host, script, folder, is_module=is_module)
    machine = Machine(
        cpus=cores or len(os.sched_getaffinity(0)),
        gpus=devices,
        interface=_interface(plan.addresses[host]),
    )
    try:
        site = make_site(request, machine, may_place=plan.may_place)
    except OSError as error:
        raise LaunchError(
            f"What the script is to find cannot be made in {request.folder}: {error}. Make room, "
            "or take another folder with --run-dir."
        ) from error
    check_variables(site.environment)
    if site.tree is not None and not plan.may_place:
        tell(
            f"headrace: {host}: a process may mount nothing here, so /opt/ml is "
            f"{site.tree.folders.base}; SM_* variables name it\n"
        )
    return site


def _request(
    options: ContractOptions,
    plan: SitePlan,
    host: str,
    script: str,
    folder: Path,
    *,
    is_module: bool,
) -> SiteRequest:
    channels = find_channels(options.channels)
    code = Path(options.source_dir or ("." if is_module else Path(script).parent)).resolve()
    entry_point = script if is_module else _from(code, script)
    return SiteRequest(
        script=Script(
            contracts=options.contracts,
            job=_job(options, plan, entry_point, channels, code),
            host=host,
        ),
        addresses=plan.addresses,
        folder=folder / "hosts" / host,
        output=folder / "output",
        code=code,
        channels=channels,
    )


def _job(
    options: ContractOptions,
    plan: SitePlan,
    entry_point: str,
    channels: Mapping[str, Path],
    code: Path,
) -> TrainingJob:
    return TrainingJob(
        name=plan.job,
        groups=plan.groups,
        entry_point=entry_point,
        distribution=plan.distribution,
        distributed=plan.distributed,
        channels=tuple(Channel(name=name) for name in sorted(channels)),
        hyperparameters=options.hyperparameters,
        submitted=str(code),
    )


def _interface(address: str) -> str:
    """Return the network interface that has an address; all of 127.0.0.0/8 are lo's."""
    if address.startswith("127."):
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return "eth0"


def _from(code: Path, script: str) -> str:
    path = Path(script).resolve()
    return str(path.relative_to(code)) if path.is_relative_to(code) else str(path)
