"""`headrace run --dry-run`: what a job would be, told and not started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.contracts.groups import Group
from headrace.contracts.sagemaker_folders import USUAL_BASE, SageMakerFolders
from headrace.contracts.script import Script, script_arguments
from headrace.contracts.training_job import Distribution, Machine, TrainingJob
from headrace.core.placed import may_place
from headrace.launch.channels.bringing import told_channels
from headrace.launch.channels.dry_channels import DryChannel, dry_channels, lines_of
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.script_flags import ScriptOptions
from headrace.launch.site.host_site import machine_of
from headrace.launch.site.outer_job import OuterJob, check_variables, find_outer_job
from headrace.launch.site.site_plan import SitePlan, plan_only_host, plan_sites
from headrace.launch.site.surroundings import check_environment
from headrace.launch.site.vertex_places import vertex_places
from headrace.launch.tables import filled, pairs
from headrace.records.launcher import hide_secrets
from headrace.records.redaction import redact

if TYPE_CHECKING:
    from headrace.launch.flags import TorchrunJob
    from headrace.launch.own_flags import DirectJob

_RUN = "RUN"  # the run's folder, in paths below it


@dataclass(frozen=True, slots=True, kw_only=True)
class DryJob:
    """What is known of a job before it starts.

    Attributes:
        name: The run's; "": it will have the time in it.
        script: The script, or a module's name.
        arguments: The user's own.
        contract: What the script is told, and how.
        around: What is around it.
        plan: The hosts.
        machines: What they have, by their names.
        ranks_per_host: On each host that trains; None: the script runs once on each host.
        restarts: How often ranks that fail are started anew.
        place: Where the hosts are.
        is_here: They have this process's variables.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    contract: ContractOptions
    around: ScriptOptions
    plan: SitePlan
    machines: Mapping[str, Machine]
    ranks_per_host: int | None
    restarts: int
    place: str
    is_here: bool = True


def describe_direct_job(job: DirectJob, script: str, devices: int) -> int:
    """Tell of a job of one process; return the exit code.

    Raises:
        UsageError: A channel has nothing, say.
    """
    outer = find_outer_job(job.contract)
    if outer is not None:
        return _tell_outer(outer, script, job.arguments, job.contract, "none: the script runs once")
    return _tell(
        DryJob(
            name=job.name or "",
            script=script,
            arguments=job.arguments,
            contract=job.contract,
            around=job.around,
            plan=_only_host(script, None, devices),
            machines=_machines_here(_only_host(script, None, devices), devices),
            ranks_per_host=None,
            restarts=0,
            place="this machine",
        )
    )


def describe_torchrun_job(job: TorchrunJob, devices: int) -> int:
    """Tell of a job of torchrun's, on this host or on several; return the exit code.

    Args:
        job: The job.
        devices: This machine's.

    Raises:
        UsageError: A channel has nothing, say.
    """
    cluster, args = job.cluster, job.args
    outer = find_outer_job(job.contract, args.group[0].partition("=")[0] if args.group else None)
    if outer is not None:
        ranks = f"{job.ranks_here} here" if outer.has_ranks_here else "none here: it runs once"
        arguments = args.training_script_args
        return _tell_outer(outer, args.training_script, arguments, job.contract, ranks)
    told = set(job.contract.contracts) - {"torchrun"}
    if cluster is None:
        plan = _only_host(args.training_script, job.distribution or "torch_distributed", devices)
        machines, place = _machines_here(plan, devices), "this machine"
        ranks_each: int | None = job.ranks_here
    else:
        others = [each for each in cluster.others if told and each.name != cluster.offload]
        groups = [cluster.training, *others]
        plan = _of_groups(groups, job, devices)
        machines = _machines_of(groups, plan, devices)
        place = f"the Ray cluster {cluster.address}" if cluster.address else "emulated here"
        ranks_each = None if told and job.distribution is None else job.ranks_here
    return _tell(
        DryJob(
            name=args.name or "",
            script=args.training_script,
            arguments=tuple(args.training_script_args),
            contract=job.contract,
            around=job.around,
            plan=plan,
            machines=machines,
            ranks_per_host=ranks_each,
            restarts=int(args.max_restarts),
            place=place,
            is_here=cluster is None or not cluster.address,
        )
    )


def _only_host(script: str, distribution: Distribution | None, devices: int) -> SitePlan:
    return plan_only_host(
        Path(script).stem, distribution=distribution, devices=devices,
        may_place=may_place(USUAL_BASE),
    )  # fmt: skip


def _of_groups(groups: Sequence[Group], job: TorchrunJob, devices: int) -> SitePlan:
    number = iter(range(2, 2 + sum(group.hosts for group in groups)))
    told = {
        group.name: (
            group.instance_type or ("local_gpu" if _gpus(group, groups, devices) else "local"),
            [f"127.0.0.{next(number)}" for _ in range(group.hosts)],
        )
        for group in groups
    }
    return plan_sites(
        Path(job.args.training_script).stem, told, distribution=job.distribution,
        distributed=groups[0].name, may_place=may_place(USUAL_BASE),
    )  # fmt: skip


def _gpus(group: Group, groups: Sequence[Group], devices: int) -> int:
    if group.gpus is not None:
        return group.gpus
    return devices // group.hosts if group is groups[0] else 0


def _machines_here(plan: SitePlan, devices: int) -> dict[str, Machine]:
    return {host: machine_of(None, devices) for host in plan.hosts}


def _machines_of(groups: Sequence[Group], plan: SitePlan, devices: int) -> dict[str, Machine]:
    return {
        host: machine_of(group.cpus, _gpus(group, groups, devices))
        for group, named in zip(groups, plan.groups, strict=True)
        for host in named.hosts
    }


def _tell_outer(
    outer: OuterJob, script: str, arguments: Sequence[str], contract: ContractOptions, ranks: str
) -> int:
    """Tell of a job that others have started already, around this process."""
    values = script_arguments(contract.contracts, contract.hyperparameters)
    facts = (
        ("script", script),
        ("arguments", " ".join(redact([*values, *arguments])) or "none"),
        ("contract", ", ".join(contract.contracts)),
        ("hosts", f"{len(outer.told.hosts)}, of the job around this process"),
        ("", ", ".join(outer.told.hosts)),
        ("this host", outer.told.here),
        ("ranks", ranks),
        ("channels", "those of that job, by the variables that are here"),
    )
    sys.stdout.write("\n".join(["Dry run: nothing is started.", "", *pairs(facts)]) + "\n")
    return 0


def _tell(job: DryJob) -> int:
    for host in job.plan.hosts if job.is_here else ():
        told = _told(job, (), host)
        check_variables(told)
        check_environment(job.around.environment, told)
    channels = dry_channels(job.contract)
    sys.stdout.write("\n".join(_lines(job, channels)) + "\n")
    return 0


def _lines(job: DryJob, channels: Sequence[DryChannel]) -> Iterator[str]:
    yield "Dry run: nothing is started."
    yield ""
    yield from pairs(_facts(job))
    host = job.plan.hosts[0]
    variables = _variables(job, channels, host)
    if variables:
        one = len(job.plan.hosts) == 1
        yield ""
        yield f"environment of {host}" + ("" if one else " (others: their own names and numbers)")
        for name, value in hide_secrets(variables).items():
            yield filled(f"  {name}=", value)
    yield ""
    yield from lines_of(channels, {group.name: group.hosts for group in job.plan.groups})


def _facts(job: DryJob) -> Iterator[tuple[str, str]]:
    values = script_arguments(job.contract.contracts, job.contract.hyperparameters)
    yield "script", job.script
    yield "arguments", " ".join(redact([*values, *job.arguments])) or "none"
    yield "run", job.name or "named after the script and the time"
    yield "contract", ", ".join(job.contract.contracts) or "torchrun's alone"
    if job.plan.distribution is not None and job.ranks_per_host is not None:
        yield "distribution", job.plan.distribution
    yield "hosts", f"{len(job.plan.hosts)}, {job.place}"
    for group in job.plan.groups:
        machine = job.machines[group.hosts[0]]
        has = f"{machine.cpus} cores, {machine.gpus} devices each"
        yield "", f"{group.name}: {len(group.hosts)} x {group.instance_type}, {has}"
        yield "", "  " + ", ".join(group.hosts)
    yield "ranks", _ranks(job)
    if job.contract.checkpoint_local_path is not None:
        yield "checkpoints", f"at {job.contract.checkpoint_local_path}, too"
    if job.around.max_run_s is not None:
        yield "max run", f"{job.around.max_run_s:g} s"
    if job.restarts:
        yield "restarts", str(job.restarts)
    for name, expression in job.around.metrics.items():
        yield "metric", f"{name}: {expression}"
    for path in job.around.dependencies:
        yield "dependency", path


def _ranks(job: DryJob) -> str:
    if job.ranks_per_host is None:
        return f"none: the script runs once on {_hosts_told(len(job.plan.hosts))}"
    training = job.plan.groups[0]
    hosts = len(training.hosts)
    total = hosts * job.ranks_per_host
    rest = len(job.plan.hosts) - hosts
    beside = f"; once on {rest} more" if rest else ""
    return f"{total}: {job.ranks_per_host} on {_hosts_told(hosts)} of {training.name}{beside}"


def _hosts_told(count: int) -> str:
    return "the host" if count == 1 else f"each of the {count} hosts"


def _variables(job: DryJob, channels: Sequence[DryChannel], host: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(_told(job, channels, host))
    if job.ranks_per_host is not None:
        ranks = len(job.plan.groups[0].hosts) * job.ranks_per_host
        last = job.ranks_per_host - 1
        found |= {
            "RANK": f"0 to {last}" if last else "0", "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(job.ranks_per_host),
        }  # fmt: skip
    return dict(sorted({**found, **job.around.environment}.items()))


def _told(job: DryJob, channels: Sequence[DryChannel], host: str) -> dict[str, str]:
    """Return what a host's script is told by its contracts."""
    plan = job.plan
    told = TrainingJob(
        name=job.name or plan.job,
        groups=plan.groups,
        entry_point=Path(job.script).name,
        distribution=plan.distribution,
        distributed=plan.distributed,
        processes_per_host=job.contract.processes_per_host,
        channels=told_channels(job.contract),
        hyperparameters=hide_secrets(dict(job.contract.hyperparameters)),
        submitted=job.contract.source_dir or str(Path(job.script).parent),
    )
    data = {each.spec.name: each.spec.uri for each in channels}
    base = USUAL_BASE if plan.may_place else f"{_RUN}/hosts/{host}/ml"
    return Script(contracts=job.contract.contracts, job=told, host=host).variables(
        SageMakerFolders(base),
        vertex_places(f"{_RUN}/output", data),
        job.machines[host],
    )
