"""The command line of `headrace run` with torchrun's flags, parsed by torchrun's own parser.

Also the cluster of a job, from its options, and hosts of emulated machine types.
"""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.core.process.parent_death import parent_bound_command
from headrace.core.world import usable_cores
from headrace.jobs.cli_args import (
    Flag,
    check_script,
    find_script,
    options_by_flag,
    split_at_script,
)
from headrace.jobs.environment.existing_job import (
    ExistingJob,
    command_without_rank_variables,
    find_existing_job,
    with_detected_contract,
)
from headrace.jobs.environment.script_command import (
    check_program,
    find_program,
    is_program,
    program_command,
    script_command,
)
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.options import Texts
from headrace.jobs.spec import (
    AUTO_OFFLOAD,
    ContractOptions,
    HostsOptions,
    JobSpec,
    Script,
    SyncOptions,
)
from headrace.jobs.sync.host_sync import SyncNames
from headrace.platforms.instance_groups import DEFAULT_GROUP, GroupSpec
from headrace.platforms.training_job import Distribution

LOOPBACK = "127.0.0.1"
LOCAL_BACKEND = "headrace-local"  # of torchrun's rendezvous: see local_rendezvous.py
# The cluster determines the number of hosts, their ranks, and the rendezvous.
_DECIDED_BY_CLUSTER = {
    "nnodes": "--nnodes",
    "node_rank": "--node-rank",
    "rdzv_backend": "--rdzv-backend",
    "rdzv_endpoint": "--rdzv-endpoint",
    "rdzv_id": "--rdzv-id",
    "standalone": "--standalone",
    "master_addr": "--master-addr",
    "master_port": "--master-port",
    "local_addr": "--local-addr",
    "log_dir": "--log-dir",  # the run folder
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The cluster on which a job runs."""

    address: str | None  # the Ray cluster's address; None: this machine, with emulated hosts
    is_ray: bool  # the hosts are a Ray cluster's; otherwise they are emulated without Ray
    training: GroupSpec
    others: tuple[GroupSpec, ...]
    offload: str | None  # the group whose hosts also make batches; None: none
    offload_if_it_helps: bool  # use that group only if it is predicted to help (`--offload auto`)
    hosts_s: float
    max_preemptions: int  # how often ranks are restarted after the loss of a host; -1: any number
    driver: bool  # the script uses Ray itself: it runs once, and Ray assigns all resources


def cluster_options(
    spec: JobSpec, args: argparse.Namespace, parser: argparse.ArgumentParser
) -> ClusterOptions | None:
    """Return the cluster of a job; None: it has none.

    Raises UsageError (flags that exclude each other).
    """
    hosts = spec.hosts
    if hosts.engine == "local" and not hosts.groups:
        return None
    for name, flag in _DECIDED_BY_CLUSTER.items():
        if getattr(args, name) != parser.get_default(name):
            given = "--engine ray" if hosts.engine == "ray" else f"--group {hosts.groups[0].flag()}"
            raise UsageError(
                f"{flag} and {given}: the cluster decides that. Give the number of "
                "hosts by --group NAME=HOSTS."
            )
    is_ray = hosts.engine == "ray"
    address = (hosts.address or env.RAY_ADDRESS.get()) if is_ray else None
    training = hosts.groups[0] if hosts.groups else GroupSpec(name=DEFAULT_GROUP, hosts=1)
    offload = _chosen_offload(spec)
    _check_offload(offload, training, hosts.groups, address)
    _check_driver(hosts, args)
    return ClusterOptions(
        address=address,
        is_ray=is_ray,
        training=training,
        others=hosts.groups[1:],
        offload=offload,
        offload_if_it_helps=hosts.offload == AUTO_OFFLOAD,
        hosts_s=hosts.hosts_s,
        max_preemptions=hosts.max_preemptions,
        driver=hosts.driver,
    )


def _chosen_offload(spec: JobSpec) -> str | None:
    """Return the offload group; `auto` stands for the only group that does not train."""
    others = spec.hosts.groups[1:]
    if spec.hosts.offload != AUTO_OFFLOAD:
        return spec.hosts.offload
    if len(others) != 1:
        names = ", ".join(group.name for group in others) or "none"
        raise UsageError(
            f"--offload auto is about the one group beside the one that trains; there are: {names}."
            " Name it by --group NAME=HOSTS, and several by --offload NAME."
        )
    if spec.recording.profile == "off":
        raise UsageError(
            "--offload auto goes by what is recorded, and --profile off records nothing. Leave one "
            "of them out, or name the group: --offload NAME."
        )
    return others[0].name


def _check_driver(hosts: HostsOptions, args: argparse.Namespace) -> None:
    if not hosts.driver:
        return
    if args.nproc_per_node != "1":
        raise UsageError(
            f"--nproc-per-node {args.nproc_per_node} and --driver: such a script runs once, and "
            "says itself how many workers Ray is to start."
        )
    if hosts.offload is not None:
        raise UsageError(
            f"--offload {hosts.offload} and --driver: Ray spreads the work of such a script over "
            "all hosts by itself. Leave one of them out."
        )


def _check_offload(
    name: str | None, training: GroupSpec, groups: tuple[GroupSpec, ...], address: str | None
) -> None:
    if name is None:
        return
    if name == training.name:
        raise UsageError(
            f"--offload {name}: that group trains, being the first --group. Name another one, "
            f"such as --group gpu=1 --group {name}=2 --offload {name}."
        )
    if address is None and name not in {group.name for group in groups}:
        raise UsageError(
            f"--offload {name}: hosts are emulated here, and none is of that group. Add --group "
            f"{name}=1:cpus=4, say, or name the cluster by --address."
        )


def emulated_ranks(spec: JobSpec, args: argparse.Namespace) -> int | None:
    """Return how many ranks a training host's machine type has; None: the type is not emulated."""
    hosts = spec.hosts
    if args.nproc_per_node != "auto" or not hosts.groups:
        return None
    if hosts.engine == "ray" and (hosts.address or env.RAY_ADDRESS.get()):
        return None  # real hosts: their devices count
    training = hosts.groups[0]
    if not training.instance_type or training.gpus is None:
        return None
    return training.gpus or 1


def print_emulated_types(groups: Sequence[GroupSpec], devices: int, ranks_here: int) -> None:
    """Print which hosts of a machine type are emulated on fewer devices than the type has."""
    cores = usable_cores()
    for group in groups:
        if not group.gpus or not group.instance_type or group.gpus * group.hosts <= devices:
            continue
        ranks = f"; {ranks_here * group.hosts} ranks share the cores" if group is groups[0] else ""
        print_status(
            f"{group.name}: {group.hosts} x {group.instance_type} have {group.gpus} "
            f"devices each, this machine has {devices}: emulated on its {cores} cores{ranks}"
        )


def emulated_devices(group: GroupSpec, left: Sequence[str], count: int) -> list[str] | None:
    """Return the devices of this machine that an emulated host sees; None: all of them.

    The host has `count` devices, of those that are left. One of a named machine type sees as many
    as the type has, or none: ranks index them.
    """
    if not group.instance_type or group.gpus is None:
        return list(left[:count]) or None
    return list(left[:count]) if len(left) >= count else []


_SHUTDOWN_S = 30  # torchrun's own default for --shutdown-timeout
_RANK_FLAGS = ("nnodes", "standalone", "rdzv_backend", "rdzv_endpoint")
_RUN_SYNTAX = "Write it as: headrace run [torchrun's flags] script.py [arguments]."
_LOG_FLAGS = ("logs_specs", "redirects", "tee", "duplicate_stdout_filters",
             "duplicate_stderr_filters")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunJob:
    """A job whose script torchrun starts."""

    spec: JobSpec  # the job, its script's path as typed
    args: argparse.Namespace  # torchrun's parsed flags; the script in them is a path from here
    ranks_here: int
    # Ranks of a host whose machine type is emulated; None: it is not emulated
    emulated_ranks: int | None
    world_size: int  # ranks on all hosts, of the largest world allowed
    keeps_own_logs: bool  # the user set torchrun's log flags; the output is left to torchrun
    shutdown_s: int  # how long torchrun waits for ranks after a stop signal
    asks_for_ranks: bool  # a torchrun flag sets the number of ranks
    # None: the job runs on this host alone, or on hosts that torchrun's flags name
    cluster: ClusterOptions | None = None

    @property
    def distribution(self) -> Distribution | None:
        """How ranks are started, as a contract names it; None: the script runs once per host."""
        if self.spec.contract.distribution is not None:
            return self.spec.contract.distribution
        return "torch_distributed" if self.asks_for_ranks else None

    @property
    def script(self) -> str:
        """The script's path from here, or a module's name."""
        return str(self.args.training_script)


def parse_torchrun_flags(argv: Sequence[str]) -> TorchrunJob:
    """Return the job of a command line with torchrun's flags, in any of their spellings.

    Raises UsageError (an unknown flag, whose nearest is named, an invalid value, or a script that
    cannot be run).
    """
    parser = _parser()
    flags, words = split_at_script(argv, parser.flags())
    options, torchrun_flags = _by_owner(flags)
    if not words:
        raise UsageError(f"No script is named. {_RUN_SYNTAX}")
    args = parser.parse_job(torchrun_flags, words[0], words[1:])
    script = Script(
        path=words[0], is_module=args.module, is_program=args.no_python, arguments=tuple(words[1:])
    )
    return _torchrun_job(JobSpec.parse(options, script, torchrun_flags), args, parser)


def torchrun_job(spec: JobSpec) -> TorchrunJob:
    """Return the job of a spec that was read before, by another process; raises UsageError."""
    parser, script = _parser(), spec.script
    args = parser.parse_job(spec.torchrun_flags, script.path, script.arguments)
    return _torchrun_job(spec, args, parser)


def _by_owner(flags: Sequence[Flag]) -> tuple[Texts, list[str]]:
    """Return the texts of our options, and the words of torchrun's flags; raises UsageError."""
    options: dict[str, list[str]] = {}
    torchrun_flags: list[str] = []
    for flag in flags:
        found = options_by_flag().get(flag.name)
        if found is None:
            torchrun_flags += flag.words
            continue
        if flag.lacks_value:
            raise UsageError(f"{flag.name} needs a value. {_RUN_SYNTAX}")
        if found.kind.is_switch and flag.value is not None:
            raise UsageError(f"{flag.name} takes no value. {_RUN_SYNTAX}")
        text = "true" if flag.value is None else flag.value
        options.setdefault(found.name, []).append(text)
    return options, torchrun_flags


def _torchrun_job(spec: JobSpec, args: argparse.Namespace, parser: _Parser) -> TorchrunJob:
    given = args.nproc_per_node or ""  # or a word such as auto
    explicit_ranks = int(given) if given.isdecimal() else None
    contract = replace(spec.contract, processes_per_host=explicit_ranks)
    runs_itself = args.no_python and not args.run_path
    if runs_itself:
        args.training_script = find_program(args.training_script, contract.source_dir)
    elif not args.module:
        args.training_script = find_script(args.training_script, contract.source_dir)
        check_script(args.training_script)
        _check_distribution(args.training_script, contract)
    asks_for_ranks = args.nproc_per_node is not None or any(
        getattr(args, name) != parser.get_default(name) for name in _RANK_FLAGS
    )
    if args.nproc_per_node is None:  # a contract's distribution starts a rank per device
        args.nproc_per_node = "auto" if contract.distribution else "1"
    cluster = cluster_options(spec, args, parser)
    if runs_itself and (cluster is None or cluster.address is None):  # else hosts have their own
        check_program(args.training_script, spec.environment.environment.get("PATH"))
    # Not with --standalone: its ranks are to form a world of their own.
    if asks_for_ranks and cluster is None and not args.standalone:
        contract = with_detected_contract(contract)
    outer = _existing_job(contract, spec.sync, cluster)
    if outer is not None:
        cluster = None
        outer.apply(args, has_ranks=contract.distribution is not None or asks_for_ranks)
    emulated = emulated_ranks(spec, args)
    ranks_here = emulated or _local_ranks(args.nproc_per_node)
    args.nproc_per_node = str(ranks_here)
    _check_interval(args.monitor_interval)
    hosts = _hosts_with_ranks(cluster, args.nnodes)
    if cluster is None:
        _check_node_rank(args, hosts)
    shutdown_s = getattr(args, "shutdown_timeout", None)
    return TorchrunJob(
        spec=replace(spec, contract=contract),
        args=args,
        ranks_here=ranks_here,
        emulated_ranks=emulated,
        world_size=ranks_here * hosts,
        keeps_own_logs=any(getattr(args, name, None) not in (None, "0", []) for name in _LOG_FLAGS),
        shutdown_s=_SHUTDOWN_S if shutdown_s is None else int(shutdown_s),
        asks_for_ranks=asks_for_ranks,
        cluster=cluster,
    )


def _check_distribution(script: str, contract: ContractOptions) -> None:
    """Raise UsageError where SageMaker would not start ranks of a script that is a program."""
    is_sagemaker = any(name.startswith("sagemaker") for name in contract.contracts)
    if is_sagemaker and contract.distribution not in (None, "mpi") and is_program(script):
        raise UsageError(
            f"--distribution {contract.distribution}: SageMaker starts ranks of a Python script, "
            f"and {script} is a program, which runs once on each host. Leave the distribution out, "
            f"and have {Path(script).name} start the ranks: torchrun --nproc-per-node ... train.py"
        )


def _existing_job(
    contract: ContractOptions, sync: SyncOptions, cluster: ClusterOptions | None
) -> ExistingJob | None:
    if not contract.contracts:
        return None
    training = cluster.training.name if cluster is not None else None
    outer = find_existing_job(contract, sync, training)
    if outer is None or cluster is None:
        return outer
    groups = {each.name: len(each.hosts) for each in outer.topology.groups}
    if groups.get(cluster.training.name) != cluster.training.hosts:
        raise UsageError(
            f"This is host {outer.topology.here} of a job that has hosts already: "
            f"{', '.join(outer.topology.hosts)}. Leave out --engine and --group, or name a group "
            "of that job by --group NAME=HOSTS; headrace cluster join makes them a cluster."
        )
    return outer


def tie_ranks_to_torchrun(
    args: argparse.Namespace,
    script_env: ScriptEnvironment,
    pid_pipes: Sequence[int] = (),
    restarts: int | None = None,
) -> None:
    """Change torchrun's arguments so that each rank ends when torchrun does, and reports its pid.

    `restarts` is how often ranks were restarted, where torchrun does not count that itself.
    """
    if args.run_path:  # runs in torchrun's own child processes, which torch ties to itself
        args.training_script_args = [*script_env.arguments, *args.training_script_args]
        return
    path, arguments = args.training_script, args.training_script_args
    if args.no_python:
        script = program_command(path, arguments, script_env)
    else:
        script = script_command(path, arguments, script_env, is_module=args.module)
    if "=" in script[0]:  # env would take it for a variable
        script = ["sh", "-c", 'exec "$0" "$@"', *script]
    if script_env.runs_once:
        script = [*command_without_rank_variables(), *script]
    if script_env.folder is not None:
        script = ["env", f"--chdir={script_env.folder}", *script]
    if restarts is not None:
        script = ["env", f"{env.RESTART_COUNT.name}={restarts}", *script]
    tied = parent_bound_command(sys.executable, script_env.with_mounts(script), pid_pipes=pid_pipes)
    args.no_python, args.module = True, False
    args.training_script, *args.training_script_args = tied


def sync_names(args: argparse.Namespace) -> SyncNames:
    """Return the names by which the hosts of torchrun's flags sync checkpoints.

    A static rendezvous numbers as many hosts as there are. Others may have more hosts or fewer at
    the next start, and those of this one are unknown before the ranks meet.
    """
    fewest_hosts, most_hosts = torchrun.parse_min_max_nnodes(args.nnodes)
    if most_hosts == 1 or args.standalone:
        return SyncNames()
    if args.rdzv_backend == "static" and fewest_hosts == most_hosts:
        return SyncNames.numbered(args.node_rank, most_hosts)
    return SyncNames.of_unknown_hosts()


def use_local_rendezvous(args: argparse.Namespace) -> None:
    """Have torchrun's arguments, where they are about this host alone, use the local rendezvous.

    What names other hosts, an address of the network, or a backend of its own stays as it is.
    """
    if not _is_local(args):
        return
    port = _port_for_ranks(args)
    if args.standalone or not args.rdzv_id or args.rdzv_id == "none":
        args.rdzv_id = str(uuid.uuid4())  # it tells two jobs of this host apart in records of torch
    args.rdzv_backend, args.rdzv_endpoint = LOCAL_BACKEND, f"{LOOPBACK}:{port}"
    args.standalone = False


def _is_local(args: argparse.Namespace) -> bool:
    _, most_hosts = torchrun.parse_min_max_nnodes(args.nnodes)
    if args.standalone:
        return True
    if most_hosts != 1 or args.local_addr or args.rdzv_conf:
        return False
    if args.rdzv_backend not in ("static", "c10d"):
        return False
    if args.rdzv_endpoint:
        try:
            host, _ = parse_rendezvous_endpoint(args.rdzv_endpoint, 0)
        except ValueError:
            return False  # torchrun says what is wrong with it
        return is_loopback(host)
    return args.rdzv_backend == "c10d" or is_loopback(args.master_addr)


def _port_for_ranks(args: argparse.Namespace) -> int:
    """Return the port that the user wants ranks to find their store at; 0: any free one."""
    if args.standalone or args.rdzv_backend == "c10d":  # its port is one of torchrun's own store
        return 0
    if args.rdzv_endpoint:
        return int(parse_rendezvous_endpoint(args.rdzv_endpoint, 0)[1])
    return int(args.master_port or 0)


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is one that only this host can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def threads_per_rank(ranks_here: int) -> int:
    """Return how many CPU threads a rank may use so that the ranks share this host's cores."""
    return max(1, usable_cores() // ranks_here)


def torchrun_flags() -> dict[str, bool]:
    """Return whether the flags of the installed torchrun take a value, in all their spellings."""
    return _parser().flags()


def _parser() -> _Parser:
    parser = _Parser(parents=[torchrun.get_args_parser()], prog="headrace run", add_help=False)
    ranks = parser.actions()["--nproc-per-node"]
    if ranks.default == "1":  # else PET_NPROC_PER_NODE is set
        ranks.default = None
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. {_RUN_SYNTAX}")

    def parse_job(
        self, flags: Sequence[str], script: str, arguments: Sequence[str]
    ) -> argparse.Namespace:
        """Return torchrun's flags, parsed, with the script and its arguments, which are not."""
        # argparse would look for flags, and beginnings of flags, in the arguments, too.
        args, unknown = self.parse_known_args([*flags, "--", script])
        if unknown:
            known = [*self.actions(), *options_by_flag()]
            raise UsageError(_unknown_flag_message(unknown[0], known))
        args.training_script_args = list(arguments)
        return args

    def flags(self) -> dict[str, bool]:
        """Return whether the flags take a value, in all their spellings."""
        return {flag: action.nargs != 0 for flag, action in self.actions().items()}

    def actions(self) -> dict[str, argparse.Action]:
        return self._option_string_actions


def _unknown_flag_message(flag: str, spellings: Sequence[str]) -> str:
    name = flag.partition("=")[0]

    def likeness(spelling: str) -> float:
        # The flag may also be an abbreviation: --nprocs is like the start of --nproc-per-node.
        return max(
            difflib.SequenceMatcher(None, name, candidate).ratio()
            for candidate in (spelling, spelling[: len(name)])
        )

    nearest = max(spellings, key=likeness)
    near = f" Did you mean {nearest}?" if likeness(nearest) > 0.6 else ""
    return f"There is no flag {name}.{near} {_RUN_SYNTAX}"


def _local_ranks(nproc_per_node: str) -> int:
    if nproc_per_node == "auto":  # torchrun's auto means a rank per core without devices
        return torch.accelerator.device_count() or 1
    try:
        ranks = int(torchrun.determine_local_world_size(nproc_per_node))
    except ValueError as error:
        raise UsageError(
            f"--nproc-per-node {nproc_per_node}: {str(error).rstrip('.')}. Give a number, or auto "
            "for one rank on each device."
        ) from error
    if ranks < 1:
        raise UsageError(f"--nproc-per-node {nproc_per_node}: a job has one rank or more.")
    return ranks


def _check_interval(interval_s: float) -> None:
    if not 0 < interval_s < float("inf"):  # torch ends in an assertion without a text
        raise UsageError(f"--monitor-interval {interval_s:g}: give seconds, more than 0.")


def _check_node_rank(args: argparse.Namespace, hosts: int) -> None:
    # Only a static rendezvous uses it, and would wait for a host that never comes.
    if args.rdzv_backend == "static" and not args.standalone and not 0 <= args.node_rank < hosts:
        raise UsageError(
            f"--node-rank {args.node_rank}: with --nnodes {args.nnodes} hosts are numbered from 0 "
            f"to {hosts - 1}."
        )


def _hosts_with_ranks(cluster: ClusterOptions | None, nnodes: str) -> int:
    if cluster is not None:
        return 1 if cluster.driver else cluster.training.hosts
    try:
        fewest, most = torchrun.parse_min_max_nnodes(nnodes)
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"--nnodes {nnodes}: write a number, or MIN:MAX.") from error
    if not 1 <= fewest <= most:
        raise UsageError(f"--nnodes {nnodes}: at least one host, and MIN no more than MAX.")
    return int(most)
