"""The hosts of a job as its scripts see them: layout, script environment, channels, /gcs mounts.

The layout has groups, host names and addresses, the same on each host. On Vertex AI, Cloud Storage
FUSE mounts buckets at `/gcs/BUCKET` (cloud.google.com/vertex-ai/docs/training, "Mount Cloud
Storage"), and scripts name paths there. Which buckets a script uses is found in its arguments and
its source text.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.mount_namespace import can_bind_mount
from headrace.core.world import usable_cores
from headrace.data.channels.mount.mount_program import NoMountError
from headrace.data.channels.resolve import ChannelMounts, resolve_channels, script_channels
from headrace.data.channels.spec import parse_cache_limit, read_channels
from headrace.data.storage.urls import parse_url
from headrace.jobs.environment.existing_job import check_variables, find_existing_job
from headrace.jobs.environment.script_command import default_code_folder
from headrace.jobs.environment.script_environment import (
    EnvironmentSpec,
    ScriptEnvironment,
    build_environment,
    check_environment,
    existing_job_environment,
    variables_before_channels,
    with_script_options,
)
from headrace.jobs.environment.unmounted_folder import UnmountedFolder
from headrace.jobs.spec import ContractOptions, JobSpec
from headrace.platforms.instance_groups import ONLY_GROUP, GroupSpec, HostGroup
from headrace.platforms.sagemaker import DEFAULT_BASE, SageMakerFolders
from headrace.platforms.sagemaker import MASTER_PORT as SAGEMAKERS_PORT
from headrace.platforms.script_contract import ContractName, ScriptContract, script_arguments
from headrace.platforms.training_job import Distribution, HostResources, TrainingJob
from headrace.platforms.vertex import MASTER_PORT as VERTEXS_PORT
from headrace.platforms.vertex import SEEN_OUTPUT, vertex_paths

_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayout:
    """The hosts of a job, with the names that its scripts see."""

    job: str
    groups: tuple[HostGroup, ...]
    addresses: Mapping[str, str]  # by host name
    distribution: Distribution | None  # how ranks are started; None: the script runs once a host
    distributed: tuple[str, ...]  # the names of the groups that have ranks
    can_bind_mount: bool  # processes of each host may have a mount namespace
    master_port: int = 0  # for the rendezvous of a script's own ranks; 0: the contract's

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of all hosts, group by group."""
        return tuple(host for group in self.groups for host in group.hosts)

    def to_json(self) -> str:
        """Return a text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HostLayout:
        """Return the layout of a `to_json` text."""
        fields: dict[str, Any] = json.loads(text)
        groups = tuple(
            HostGroup(**{**group, "hosts": tuple(group["hosts"])}) for group in fields["groups"]
        )
        return cls(**{**fields, "groups": groups, "distributed": tuple(fields["distributed"])})


def layout_hosts(
    job: str,
    groups: Mapping[str, tuple[str, list[str]]],
    *,
    distribution: Distribution | None,
    distributed: str | None,
    can_bind_mount: bool,
    master_port: int = 0,
) -> HostLayout:
    """Return the layout of hosts that are known by their addresses.

    Where scripts can get an /etc/hosts of the job's, hosts are called algo-1, algo-2, ... in the
    order of the groups. Elsewhere nothing would resolve such names, and they are called by address.
    `groups` has the type and the addresses of the hosts of each group; `distributed` is the group
    that has ranks, None: none.
    """
    addresses: dict[str, str] = {}
    named = []
    for group, (kind, hosts) in groups.items():
        names = [f"algo-{len(addresses) + number}" for number in range(1, len(hosts) + 1)]
        names = names if can_bind_mount else hosts
        addresses |= dict(zip(names, hosts, strict=True))
        named.append(HostGroup(name=group, hosts=tuple(names), instance_type=kind))
    return HostLayout(
        job=job,
        groups=tuple(named),
        addresses=addresses,
        distribution=distribution,
        distributed=(distributed,) if distribution is not None and distributed else (),
        can_bind_mount=can_bind_mount,
        master_port=master_port,
    )


def layout_emulated_hosts(
    job: str, groups: Sequence[GroupSpec], has_devices: Callable[[GroupSpec], bool], *,
    distribution: Distribution | None, can_bind_mount: bool,
) -> HostLayout:  # fmt: skip
    """Return the layout of groups of emulated hosts, the training group first; see `layout_hosts`.

    Hosts of a group without a machine type are called local, with devices local_gpu.
    """
    number = iter(range(2, 2 + sum(group.hosts for group in groups)))
    types_and_addresses = {
        group.name: (
            group.instance_type or ("local_gpu" if has_devices(group) else "local"),
            [f"127.0.0.{next(number)}" for _ in range(group.hosts)],
        )
        for group in groups
    }
    return layout_hosts(
        job, types_and_addresses, distribution=distribution, distributed=groups[0].name,
        can_bind_mount=can_bind_mount,
    )  # fmt: skip


def free_master_port(contracts: Sequence[ContractName]) -> int:
    """Return a free rendezvous port on this machine; 0 where the contracts' own port is free."""
    usual = SAGEMAKERS_PORT if any(each.startswith("sage") for each in contracts) else VERTEXS_PORT
    with socket.socket() as probe:
        try:
            probe.bind(("", usual))  # on all addresses, as torch's store does
        except OSError:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])
    return 0


def layout_single_host(
    job: str, *, distribution: Distribution | None, devices: int, can_bind_mount: bool,
    master_port: int = 0,
) -> HostLayout:  # fmt: skip
    """Return the layout of a job on this host alone; see `layout_hosts`."""
    kind = "local_gpu" if devices else "local"
    return layout_hosts(
        job, {ONLY_GROUP: (kind, [_ADDRESS])},
        distribution=distribution, distributed=ONLY_GROUP, can_bind_mount=can_bind_mount,
        master_port=master_port,
    )  # fmt: skip


_GCS_ROOT = Path("/gcs")
# A bucket's name: cloud.google.com/storage/docs/buckets, "Naming". Scripts write /gcs for gs:/.
_BUCKET_NAME = r"([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?![A-Za-z0-9._-])"
_BY_PATH = re.compile(rf"(?<![\w/.-])/gcs/{_BUCKET_NAME}")
_BY_URL = re.compile(rf"\b(?:gs|gcs)://{_BUCKET_NAME}")


def mount_buckets(
    options: ContractOptions, script: str, arguments: Iterable[str], folder: Path
) -> tuple[dict[str, str], ChannelMounts]:
    """Mount the buckets that a script for Vertex AI uses, read only, in a folder of this host.

    A bucket that cannot be mounted is reported by a status line. Returns where each bucket is
    mounted, by the path at which the script sees it, and the mounts, which last until the job's
    end.
    """
    buckets = sorted(_buckets_of_script(options, script, arguments))
    limit_bytes = parse_cache_limit(options.cache_limit) if options.cache_limit else None
    mounts = ChannelMounts(folder, limit_bytes, len(buckets))
    bind_mounts: dict[str, str] = {}
    for bucket in buckets:
        path = _GCS_ROOT / bucket
        if path.exists():  # mounted by the system
            continue
        try:
            bind_mounts[str(path)] = str(_mount_bucket(bucket, path, mounts))
        except (NoMountError, UsageError, OSError) as error:
            print_status(
                f"{path} is not there, as it would be on Vertex AI: {error}. Give the "
                f"data as --channel training=gs://{bucket}/..., and read AIP_TRAINING_DATA_URI."
            )
    return bind_mounts, mounts


def _mount_bucket(bucket: str, path: Path, mounts: ChannelMounts) -> Path:
    if not can_bind_mount(str(path)):
        raise NoMountError("a process may mount nothing here")
    return mounts.mount_bucket(bucket)


def _buckets_of_script(options: ContractOptions, script: str, arguments: Iterable[str]) -> set[str]:
    if "vertex" not in options.contracts:
        return set()
    source = ""
    with suppress(OSError, UnicodeDecodeError):  # a module's name, or a program
        source = Path(script).read_text(encoding="utf-8")
    texts = [*arguments, *map(str, options.hyperparameters.values())]
    found = {name for text in (source, *texts) for name in _BY_PATH.findall(text)}
    if str(_GCS_ROOT) in source:  # it may turn URLs into paths
        found.update(name for text in texts for name in _BY_URL.findall(text))
    return found


def _code_folder(options: ContractOptions) -> str | None:
    return str(Path(options.source_dir).resolve()) if options.source_dir else None


def single_host_environment(
    job: JobSpec, script: str, *, folder: Path, distribution: Distribution | None,
    count_devices: Callable[[], int],
) -> ScriptEnvironment:  # fmt: skip
    """Return the script environment of a job on this host alone; see `host_environment`.

    Without a distribution the script runs once. Devices are counted only where the contract needs
    their number.
    """
    options = job.contract
    if not options.has_platform:
        return host_environment(job, script, None, "", folder=folder)
    training = job.hosts.groups[0].name if job.hosts.groups else None
    outer = find_existing_job(options, job.sync, training)
    if outer is not None:
        print_status(
            f"this is host {outer.topology.here} of a job of "
            f"{len(outer.topology.hosts)}, whose folders and variables the script gets"
        )
        has_ranks = distribution is not None and outer.has_local_ranks
        script_env = existing_job_environment(
            options.contracts, options.hyperparameters, has_ranks=has_ranks,
            folder=_code_folder(options),
        )  # fmt: skip
        return with_script_options(script_env, job.environment, folder)
    devices = count_devices()
    layout = layout_single_host(
        folder.name, distribution=distribution, devices=devices,
        can_bind_mount=can_bind_mount(DEFAULT_BASE) and not is_below_default_base(options, script),
        master_port=free_master_port(options.contracts),
    )  # fmt: skip
    script_env = host_environment(
        job, script, layout, layout.hosts[0], folder=folder, devices=devices
    )
    return replace(script_env, runs_once=distribution is None)


def host_environment(
    job: JobSpec, script: str, layout: HostLayout | None, host: str, *, folder: Path,
    devices: int = 0, cores: int | None = None,
) -> ScriptEnvironment:  # fmt: skip
    """Return the script environment of one host of a job.

    Without `cores` the host has those that this process may use. Raises UsageError (a missing
    channel, or contradictory variables, for example), StorageError (a channel cannot be copied),
    LaunchError (the folders cannot be made).
    """
    options = job.contract
    if layout is None:  # the script gets only its arguments
        arguments = tuple(script_arguments((), options.hyperparameters))
        plain = ScriptEnvironment(arguments=arguments, folder=_code_folder(options))
        return with_script_options(plain, job.environment, folder)
    spec = _environment_spec(job, layout, host, script, folder)
    machine = host_resources(cores, devices, _interface(layout.addresses[host]))
    variables = variables_before_channels(spec, machine, can_bind_mount=layout.can_bind_mount)
    check_variables(variables)  # before anything is copied
    check_environment(job.environment.environment, variables)
    unmounted = None
    if "vertex" in options.contracts and not spec.can_mount_output:
        print_status(
            f"{host}: AIP_MODEL_DIR is {spec.seen_output}/model/, as nothing can be mounted at "
            "/gcs for the script: it should use that as a path, or replace gs:// by /gcs/ in it"
        )
        unmounted = _unmounted_folder(job, spec, folder)
    pipes = Path(SageMakerFolders(str(spec.base)).data)
    channels = resolve_channels(options, spec.script.job, host, spec.folder, pipes)
    bind_mounts, buckets = mount_buckets(
        options, script, job.script.arguments, spec.folder / "buckets"
    )
    spec = replace(spec, channels=channels.places, bind_mounts=bind_mounts)
    try:
        script_env = build_environment(spec, machine, can_bind_mount=layout.can_bind_mount)
    except OSError as error:
        raise LaunchError(
            f"What the script is to find cannot be made in {spec.folder}: {error}. Make room, "
            "or take another folder with --run-dir."
        ) from error
    check_variables(script_env.environment)
    if channels.piped is not None and script_env.tree is not None:
        channels.piped.serve()
    if script_env.tree is not None and not layout.can_bind_mount:
        print_status(
            f"{host}: a process may mount nothing here, so /opt/ml is "
            f"{script_env.tree.folders.base}; SM_* variables name it"
        )
    script_env = replace(script_env, channels=(*channels.held, buckets), unmounted=unmounted)
    return with_script_options(script_env, job.environment, folder)


def _unmounted_folder(job: JobSpec, spec: EnvironmentSpec, run: Path) -> UnmountedFolder:
    """Return what notices files of the script below /gcs; the user may have put the job's there."""
    urls = map(parse_url, filter(None, (job.sync.checkpoint_uri, job.sync.output_path)))
    own = [run, spec.code, *(Path(each.prefix) for each in urls if each.kind == "local")]
    remedy = (
        "Copy them from there, and have the script write to AIP_MODEL_DIR, AIP_CHECKPOINT_DIR or "
        f"AIP_TENSORBOARD_LOG_DIR, which are folders of {spec.seen_output}: as paths, or with "
        "gs:// replaced by /gcs/."
    )
    return UnmountedFolder(_GCS_ROOT, own, host=spec.script.host, remedy=remedy)


def is_below_default_base(options: ContractOptions, script: str) -> bool:
    """Whether code or data lie below a real /opt/ml, which a bind mount would hide."""
    specs = read_channels(options.channels, options.input_modes).values()
    local = [str(each.path) for each in specs if each.is_local]
    own = [options.source_dir or str(Path(script).parent), *local]
    return any(Path(each).resolve().is_relative_to(DEFAULT_BASE) for each in own)


def _environment_spec(
    job: JobSpec, layout: HostLayout, host: str, script: str, folder: Path
) -> EnvironmentSpec:
    options, is_module = job.contract, job.script.is_module
    own = default_code_folder(script, is_module=is_module, never_python=job.script.is_program)
    code = Path(options.source_dir or own).resolve()
    entry_point = script if is_module else _relative_script(code, script)
    return EnvironmentSpec(
        script=ScriptContract(
            contracts=options.contracts,
            job=training_job(options, layout, entry_point, code),
            host=host,
        ),
        addresses=layout.addresses,
        folder=folder / "hosts" / host,
        output=folder / "output",
        code=code,
        is_code_named=options.source_dir is not None,
        channels={},
        checkpoint_path=options.checkpoint_local_path,
        # Ray's own processes, which run what a driver asks for, are in no mount namespace.
        can_mount_output="vertex" in options.contracts
        and layout.can_bind_mount
        and not job.hosts.driver
        and can_bind_mount(SEEN_OUTPUT),
    )


def training_job(
    options: ContractOptions, layout: HostLayout, entry_point: str, code: Path
) -> TrainingJob:
    """Return a job as its platform describes it to the script."""
    return TrainingJob(
        name=layout.job,
        groups=layout.groups,
        entry_point=entry_point,
        distribution=layout.distribution,
        distributed=layout.distributed,
        processes_per_host=options.processes_per_host,
        channels=script_channels(options),
        hyperparameters=options.hyperparameters,
        submitted=str(code),
        region=env.AWS_REGION.get() or env.AWS_DEFAULT_REGION.get() or "",
        master_port=layout.master_port,
    )


def host_resources(cores: int | None, devices: int, interface: str = "lo") -> HostResources:
    """Return a host's resources, as its script sees them; without `cores` those of this process.

    Emulated hosts reach each other by the loopback interface.
    """
    torch = ""
    with suppress(metadata.PackageNotFoundError):
        torch = metadata.version("torch")  # without importing it
    cpus = cores or usable_cores()
    return HostResources(cpus=cpus, gpus=devices, interface=interface, torch=torch)


def _interface(address: str) -> str:
    """Return the network interface that has an address; 127.0.0.0/8 belongs to lo."""
    if address.startswith("127."):
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return "eth0"


def _relative_script(code: Path, script: str) -> str:
    path = Path(script).parent.resolve() / Path(script).name  # a link keeps its own name
    return str(path.relative_to(code)) if path.is_relative_to(code) else str(path)


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
    paths = vertex_paths(SEEN_OUTPUT, {name: spec.uri for name, spec in specs.items()})
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
    return layout_emulated_hosts(
        job, groups, lambda group: bool(group.gpus), distribution=options.distribution,
        can_bind_mount=True,
    )  # fmt: skip
