"""The `headrace run --dry-run` text: hosts, ranks, variables, arguments and data of a job."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import UsageError
from headrace.core.process.mount_namespace import can_bind_mount
from headrace.core.units import format_bytes
from headrace.data.channels.resolve import script_channels
from headrace.data.channels.sizes import ChannelSize, channel_sizes
from headrace.data.channels.spec import ChannelSpec, read_channels
from headrace.data.storage import safe_url
from headrace.jobs.environment.existing_job import ExistingJob, check_variables, find_existing_job
from headrace.jobs.environment.host_environment import (
    HostLayout,
    host_resources,
    layout_emulated_hosts,
    layout_single_host,
)
from headrace.jobs.environment.script_environment import check_environment
from headrace.jobs.spec import ContractOptions, JobSpec
from headrace.platforms.instance_groups import GroupSpec
from headrace.platforms.sagemaker import DEFAULT_BASE, SageMakerFolders
from headrace.platforms.script_contract import ScriptContract, script_arguments
from headrace.platforms.training_job import Distribution, HostResources, TrainingJob
from headrace.platforms.vertex import SEEN_OUTPUT, vertex_paths
from headrace.records.redaction import hide_secrets, redact

if TYPE_CHECKING:
    from headrace.jobs.torchrun_args import TorchrunJob

_TERMINAL_COLUMNS = 80
_MAX_LINES = 3
_LABEL_COLUMNS = 14


def labelled_lines(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield lines of labels and their texts; an empty label continues the one before."""
    for label, text in facts:
        yield wrapped_text(f"{label:<{_LABEL_COLUMNS - 2}}  ", text)


def wrapped_text(head: str, text: str) -> str:
    """Return a text after a head, wrapped; of a text that is too long, a part and its length."""
    lines = textwrap.wrap(
        text,
        _TERMINAL_COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * min(len(head), _LABEL_COLUMNS),
        break_on_hyphens=False,
        drop_whitespace=False,
    ) or [head]
    if len(lines) > _MAX_LINES and len(text) > 3 * _TERMINAL_COLUMNS:
        last = f" ... ({len(text):,} characters)"
        lines = lines[:_MAX_LINES]
        lines[-1] = lines[-1][: _TERMINAL_COLUMNS - len(last)] + last
    return "\n".join(line.rstrip() for line in lines)


_COPY_MODES = ("File", "Cache")


SizedChannels = Sequence[tuple[ChannelSpec, ChannelSize]]


def sized_channels(options: ContractOptions) -> SizedChannels:
    """Return the channels of the flags with their sizes; raises UsageError and StorageError."""
    specs = read_channels(options.channels, options.input_modes)
    weights = channel_sizes({name: spec.uri for name, spec in specs.items()})
    return [(spec, weights[name]) for name, spec in specs.items()]


def channel_lines(channels: SizedChannels, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the lines about channels."""
    if not channels:
        yield "no channels: no data to move"
        return
    yield "channels"
    for spec, weight in channels:
        yield wrapped_text(f"  {spec.name:<12}", safe_url(spec.uri))
        objects = f"{weight.objects:,} object{'' if weight.objects == 1 else 's'}"
        size = format_bytes(weight.size_bytes)
        yield wrapped_text(
            " " * 14, f"{objects}, {size}; {spec.mode}: {_data_to_move(spec, weight, groups)}"
        )


def _data_to_move(
    spec: ChannelSpec, weight: ChannelSize, groups: Mapping[str, Sequence[str]]
) -> str:
    for group in spec.groups:
        if group not in groups:
            raise UsageError(
                f"--channel {spec.name}: there is no instance group {group}: there are "
                f"{', '.join(groups)}."
            )
    if spec.is_piped:
        return "streamed as the script reads it"
    if spec.is_local:
        return "nothing to move"
    if spec.mode not in _COPY_MODES:
        return "read as the script asks"
    hosts = sum(len(groups[name]) for name in spec.groups or groups)
    total = format_bytes(weight.size_bytes)
    if hosts == 1:
        return f"{total} to move"
    if spec.distribution != "FullyReplicated":
        return f"{total} to move, shared by {hosts} hosts"
    return f"{total} to move to each of {hosts} hosts (emulated ones share a copy)"


_IN_OTHER_LINES = {
    "name", "dry_run", "run_dir", "runs_dir", "environment", "contract", "channel",
    "hyperparameter", "source_dir", "distribution", "input_mode", "checkpoint_local_path",
    "metric", "engine", "group", "address",
}  # fmt: skip
"""Options that a dry run shows in lines of their own kind; it lists all others."""
_RUN = "RUN"  # stands for the run folder in paths


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunJob:
    """What is known of a job before it starts."""

    spec: JobSpec
    script: str  # the script's path from here, or a module's name
    plan: HostLayout
    machines: Mapping[str, HostResources]
    ranks_per_host: int | None  # ranks per training host; None: the script runs once on each host
    restarts: int
    place: str
    is_here: bool = True  # the hosts inherit this process's variables


def _count_devices() -> int:
    import torch

    return torch.accelerator.device_count()


def describe_direct_job(job: JobSpec, script: str) -> int:
    """Print the dry run of a job of one process; return the exit code."""
    outer = find_existing_job(job.contract, job.sync)
    if outer is not None:
        return _print_existing_job(outer, script, job, "none: the script runs once")
    devices = _count_devices()
    plan = _single_host_layout(script, None, devices)
    return _print_job(
        DryRunJob(
            spec=job, script=script, plan=plan, machines=_local_resources(plan, devices),
            ranks_per_host=None, restarts=0, place="this machine",
        )
    )  # fmt: skip


def describe_torchrun_job(job: TorchrunJob) -> int:
    """Print the dry run of a torchrun job, on one host or several; return the exit code."""
    cluster, spec = job.cluster, job.spec
    named = spec.hosts.groups[0].name if spec.hosts.groups else None
    outer = find_existing_job(spec.contract, spec.sync, named)
    if outer is not None:
        ranks = f"{job.ranks_here} here" if outer.has_local_ranks else "none here: it runs once"
        return _print_existing_job(outer, job.script, spec, ranks)
    has_contract, devices = spec.contract.has_platform, _count_devices()
    if cluster is None:
        plan = _single_host_layout(job.script, job.distribution or "torch_distributed", devices)
        machines, place = _local_resources(plan, devices), "this machine"
        ranks_each: int | None = job.ranks_here
    else:
        others = [each for each in cluster.others if has_contract and each.name != cluster.offload]
        groups = [cluster.training, *others]
        plan = layout_emulated_hosts(
            Path(job.script).stem, groups,
            lambda group: bool(_devices_per_host(group, groups, devices)),
            distribution=job.distribution, can_bind_mount=can_bind_mount(DEFAULT_BASE),
        )  # fmt: skip
        machines = _group_resources(groups, plan, devices)
        place = f"the Ray cluster {cluster.address}" if cluster.address else "emulated here"
        ranks_each = None if has_contract and job.distribution is None else job.ranks_here
    return _print_job(
        DryRunJob(
            spec=spec, script=job.script, plan=plan, machines=machines, ranks_per_host=ranks_each,
            restarts=int(job.args.max_restarts), place=place,
            is_here=cluster is None or not cluster.address,
        )
    )  # fmt: skip


def _single_host_layout(script: str, distribution: Distribution | None, devices: int) -> HostLayout:
    return layout_single_host(
        Path(script).stem, distribution=distribution, devices=devices,
        can_bind_mount=can_bind_mount(DEFAULT_BASE),
    )  # fmt: skip


def _devices_per_host(group: GroupSpec, groups: Sequence[GroupSpec], devices: int) -> int:
    return group.gpus_a_host(devices if group is groups[0] else 0)


def _local_resources(plan: HostLayout, devices: int) -> dict[str, HostResources]:
    return {host: host_resources(None, devices) for host in plan.hosts}


def _group_resources(
    groups: Sequence[GroupSpec], plan: HostLayout, devices: int
) -> dict[str, HostResources]:
    return {
        host: host_resources(group.cpus, _devices_per_host(group, groups, devices))
        for group, named in zip(groups, plan.groups, strict=True)
        for host in named.hosts
    }


def _print_existing_job(outer: ExistingJob, script: str, spec: JobSpec, ranks: str) -> int:
    """Print the dry run inside an existing job."""
    facts = (
        ("script", script),
        ("arguments", _arguments(spec)),
        ("contract", ", ".join(spec.contract.contracts)),
        ("hosts", f"{len(outer.topology.hosts)}, of the job around this process"),
        ("", ", ".join(outer.topology.hosts)),
        ("this host", outer.topology.here),
        ("ranks", ranks),
        ("channels", "those of that job, by the variables that are here"),
    )
    sys.stdout.write("\n".join(["Dry run: nothing is started.", "", *labelled_lines(facts)]) + "\n")
    return 0


def _arguments(spec: JobSpec) -> str:
    values = script_arguments(spec.contract.contracts, spec.contract.hyperparameters)
    return " ".join(redact([*values, *spec.script.arguments])) or "none"


def _print_job(job: DryRunJob) -> int:
    for host in job.plan.hosts if job.is_here else ():
        variables = _contract_variables(job, (), host)
        check_variables(variables)
        check_environment(job.spec.environment.environment, variables)
    channels = sized_channels(job.spec.contract)
    sys.stdout.write("\n".join(_lines(job, channels)) + "\n")
    return 0


def _lines(job: DryRunJob, channels: SizedChannels) -> Iterator[str]:
    yield "Dry run: nothing is started."
    yield ""
    yield from labelled_lines(_facts(job))
    host = job.plan.hosts[0]
    variables = _variables(job, channels, host)
    if variables:
        one = len(job.plan.hosts) == 1
        yield ""
        yield f"environment of {host}" + ("" if one else " (others: their own names and numbers)")
        for name, value in hide_secrets(variables).items():
            yield wrapped_text(f"  {name}=", value)
    yield ""
    yield from channel_lines(channels, {group.name: group.hosts for group in job.plan.groups})


def _facts(job: DryRunJob) -> Iterator[tuple[str, str]]:
    spec = job.spec
    yield "script", job.script
    yield "arguments", _arguments(spec)
    yield "run", spec.run.name or "named after the script and the time"
    yield "contract", ", ".join(spec.contract.contracts) or "torchrun's alone"
    if job.plan.distribution is not None and job.ranks_per_host is not None:
        yield "distribution", job.plan.distribution
    yield "hosts", f"{len(job.plan.hosts)}, {job.place}"
    for group in job.plan.groups:
        machine = job.machines[group.hosts[0]]
        has = f"{machine.cpus} cores, {machine.gpus} devices each"
        yield "", f"{group.name}: {len(group.hosts)} x {group.instance_type}, {has}"
        yield "", "  " + ", ".join(group.hosts)
    yield "ranks", _ranks(job)
    if spec.contract.checkpoint_local_path is not None:
        yield "checkpoints", f"at {spec.contract.checkpoint_local_path}, too"
    if job.restarts:
        yield "restarts", str(job.restarts)
    for name, expression in spec.recording.metrics.items():
        yield "metric", f"{name}: {expression}"
    for name, texts in spec.texts().items():
        if name not in _IN_OTHER_LINES:
            yield from ((name.replace("_", " "), text) for text in redact(texts))


def _ranks(job: DryRunJob) -> str:
    if job.ranks_per_host is None:
        return f"none: the script runs once on {_hosts_text(len(job.plan.hosts))}"
    training = job.plan.groups[0]
    hosts = len(training.hosts)
    total = hosts * job.ranks_per_host
    rest = len(job.plan.hosts) - hosts
    others = f"; once on {rest} more" if rest else ""
    return f"{total}: {job.ranks_per_host} on {_hosts_text(hosts)} of {training.name}{others}"


def _hosts_text(count: int) -> str:
    return "the host" if count == 1 else f"each of the {count} hosts"


def _variables(job: DryRunJob, channels: SizedChannels, host: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(_contract_variables(job, channels, host))
    if job.ranks_per_host is not None:
        ranks = len(job.plan.groups[0].hosts) * job.ranks_per_host
        last = job.ranks_per_host - 1
        found |= {
            "RANK": f"0 to {last}" if last else "0", "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(job.ranks_per_host),
        }  # fmt: skip
    return dict(sorted({**found, **job.spec.environment.environment}.items()))


def _contract_variables(job: DryRunJob, channels: SizedChannels, host: str) -> dict[str, str]:
    """Return the variables that a host's script gets by its contracts."""
    plan = job.plan
    training_job = TrainingJob(
        name=job.spec.run.name or plan.job,
        groups=plan.groups,
        entry_point=Path(job.script).name,
        distribution=plan.distribution,
        distributed=plan.distributed,
        processes_per_host=job.spec.contract.processes_per_host,
        channels=script_channels(job.spec.contract),
        hyperparameters=hide_secrets(dict(job.spec.contract.hyperparameters)),
        submitted=job.spec.contract.source_dir or str(Path(job.script).parent),
    )
    data = {spec.name: spec.uri for spec, _ in channels}
    base = DEFAULT_BASE if plan.can_bind_mount else f"{_RUN}/hosts/{host}/ml"
    return ScriptContract(
        contracts=job.spec.contract.contracts, job=training_job, host=host
    ).variables(SageMakerFolders(base), vertex_paths(_seen_output(job), data), job.machines[host])


def _seen_output(job: DryRunJob) -> str:
    """Return where the script will see the output; see `SEEN_OUTPUT`."""
    is_mounted = job.plan.can_bind_mount and not job.spec.hosts.driver
    return SEEN_OUTPUT if is_mounted and can_bind_mount(SEEN_OUTPUT) else f"{_RUN}/output"
