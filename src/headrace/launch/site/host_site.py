"""The site of one host of a job: made on that host, before its script begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

import psutil

from headrace.contracts.sagemaker_folders import USUAL_BASE, SageMakerFolders
from headrace.contracts.script import Script, script_arguments
from headrace.contracts.training_job import Distribution, Machine, TrainingJob
from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.core.placed import may_place
from headrace.launch.channels.bringing import bring_channels, told_channels
from headrace.launch.channels.bucket_folders import bucket_folders
from headrace.launch.channels.channel_flags import read_channels
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.site.outer_job import check_variables, find_outer_job
from headrace.launch.site.site_plan import SitePlan, plan_only_host, port_here
from headrace.launch.site.sites import (
    Site,
    SiteRequest,
    make_site,
    outer_site,
    told_before_channels,
)
from headrace.launch.site.surroundings import check_environment
from headrace.launch.told import tell


def is_told(options: ContractOptions) -> bool:
    """Whether the script is told of its job by more than torchrun's variables."""
    return bool(set(options.contracts) - {"torchrun"})


def plain_site(options: ContractOptions) -> Site:
    """Return the site of a script that is told nothing but its arguments."""
    arguments = script_arguments((), options.hyperparameters)
    return Site(arguments=tuple(arguments), folder=_named_code(options))


def _named_code(options: ContractOptions) -> str | None:
    return str(Path(options.source_dir).resolve()) if options.source_dir else None


def only_host_site(
    options: ContractOptions,
    *,
    script: str,
    is_module: bool,
    folder: Path,
    distribution: Distribution | None,
    count_devices: Callable[[], int],
    training: str | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Site:
    """Make the site of a job on this host alone; see `host_site`.

    Args:
        options: What the script is to be told.
        script: Its path, or its module's name.
        is_module: The script is a module's name.
        folder: The run's.
        distribution: What starts the ranks; None: the script runs once.
        count_devices: Returns how many this host has; asked where a script is told of them.
        training: The group that trains, where the command line names one.
        arguments: The script's own.
        environment: Variables that the command line gives the script.

    Raises:
        UsageError: A channel is not there, say.
        LaunchError: The folders cannot be made.
    """
    if not is_told(options):
        return plain_site(options)
    outer = find_outer_job(options, training)
    if outer is not None:
        tell(f"headrace: this is host {outer.told.here} of a job of {len(outer.told.hosts)}, whose "
             "folders and variables the script gets\n")  # fmt: skip
        has_ranks = distribution is not None and outer.has_ranks_here
        return outer_site(
            options.contracts, options.hyperparameters, has_ranks=has_ranks,
            folder=_named_code(options),
        )  # fmt: skip
    devices = count_devices()
    plan = plan_only_host(
        folder.name, distribution=distribution, devices=devices,
        may_place=may_place(USUAL_BASE) and not lies_in_usual_base(options, script),
        master_port=port_here(options.contracts),
    )  # fmt: skip
    site = host_site(
        options, plan, plan.hosts[0], script=script, is_module=is_module, folder=folder,
        devices=devices, arguments=arguments, environment=environment,
    )  # fmt: skip
    return replace(site, runs_once=distribution is None)


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
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
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
        arguments: The script's own.
        environment: Variables that the command line gives the script.

    Raises:
        UsageError: A channel is not there, say, or variables contradict one another.
        StorageError: One cannot be copied.
        LaunchError: The folders cannot be made.
    """
    request = _request(options, plan, host, script, folder, is_module=is_module)
    machine = machine_of(cores, devices, _interface(plan.addresses[host]))
    told = told_before_channels(request, machine, may_place=plan.may_place)
    check_variables(told)  # before anything is copied
    check_environment(environment, told)
    pipes = Path(SageMakerFolders(str(request.base)).data)
    brought = bring_channels(options, request.script.job, host, request.folder, pipes)
    buckets = bucket_folders(options, script, arguments, request.folder / "buckets")
    request = replace(request, channels=brought.places, places=buckets.places)
    try:
        site = make_site(request, machine, may_place=plan.may_place)
    except OSError as error:
        raise LaunchError(
            f"What the script is to find cannot be made in {request.folder}: {error}. Make room, "
            "or take another folder with --run-dir."
        ) from error
    check_variables(site.environment)
    if brought.piped is not None and site.tree is not None:
        brought.piped.serve()
    if site.tree is not None and not plan.may_place:
        tell(
            f"headrace: {host}: a process may mount nothing here, so /opt/ml is "
            f"{site.tree.folders.base}; SM_* variables name it\n"
        )
    return replace(site, held=(*brought.held, buckets.mounts))


def lies_in_usual_base(options: ContractOptions, script: str) -> bool:
    """Whether code or data lie below a real /opt/ml, where nothing else must be seen then."""
    specs = read_channels(options.channels, options.input_modes).values()
    local = [each.uri for each in specs if each.is_local]
    own = [options.source_dir or str(Path(script).parent), *local]
    return any(Path(each).resolve().is_relative_to(USUAL_BASE) for each in own)


def _request(
    options: ContractOptions,
    plan: SitePlan,
    host: str,
    script: str,
    folder: Path,
    *,
    is_module: bool,
) -> SiteRequest:
    code = Path(options.source_dir or ("." if is_module else Path(script).parent)).resolve()
    entry_point = script if is_module else _from(code, script)
    return SiteRequest(
        script=Script(
            contracts=options.contracts,
            job=_job(options, plan, entry_point, code),
            host=host,
        ),
        addresses=plan.addresses,
        folder=folder / "hosts" / host,
        output=folder / "output",
        code=code,
        is_code_named=options.source_dir is not None,
        channels={},
        checkpoints_at=options.checkpoint_local_path,
    )


def _job(
    options: ContractOptions,
    plan: SitePlan,
    entry_point: str,
    code: Path,
) -> TrainingJob:
    return TrainingJob(
        name=plan.job,
        groups=plan.groups,
        entry_point=entry_point,
        distribution=plan.distribution,
        distributed=plan.distributed,
        processes_per_host=options.processes_per_host,
        channels=told_channels(options),
        hyperparameters=options.hyperparameters,
        submitted=str(code),
        region=env.AWS_REGION.get() or env.AWS_DEFAULT_REGION.get() or "",
        master_port=plan.master_port,
    )


def machine_of(cores: int | None, devices: int, interface: str = "lo") -> Machine:
    """Return a host as its script is told of it.

    Args:
        cores: Of the host; None: those of this process.
        devices: Accelerators of the host.
        interface: Over which it reaches the other hosts; of emulated ones the loopback.
    """
    return Machine(
        cpus=cores or len(os.sched_getaffinity(0)),
        gpus=devices,
        interface=interface,
        torch=_torch_version(),
    )


def _torch_version() -> str:
    """Return the version of PyTorch here, without importing it; "": it is not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _interface(address: str) -> str:
    """Return the network interface that has an address; all of 127.0.0.0/8 are lo's."""
    if address.startswith("127."):
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return "eth0"


def _from(code: Path, script: str) -> str:
    path = Path(script).parent.resolve() / Path(script).name  # a link is called what it is called
    return str(path.relative_to(code)) if path.is_relative_to(code) else str(path)
