"""The command line of `headrace run` with torchrun's flags, parsed by torchrun's own parser."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch
from torch.distributed import run as torchrun

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.process.parent_death import parent_bound_command
from headrace.jobs.cli_args import add_options, check_script, find_script, option_values
from headrace.jobs.environment.existing_job import (
    ExistingJob,
    command_without_rank_variables,
    find_existing_job,
    with_detected_contract,
)
from headrace.jobs.environment.script_environment import ScriptEnvironment, program_command
from headrace.jobs.hosts.cluster_options import ClusterOptions, cluster_options, emulated_ranks
from headrace.jobs.spec import ContractOptions, JobSpec, Script
from headrace.platforms.training_job import Distribution

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
    args = parser.parse_job(argv)
    script = Script(
        path=args.training_script, is_module=args.module, is_program=args.no_python,
        arguments=tuple(args.training_script_args),
    )  # fmt: skip
    spec = JobSpec.parse(option_values(args), script, _torchrun_flags(argv, script))
    return _torchrun_job(spec, args, parser)


def torchrun_job(spec: JobSpec) -> TorchrunJob:
    """Return the job of a spec that was read before, by another process; raises UsageError."""
    parser = _parser()
    words = [*spec.torchrun_flags, spec.script.path, *spec.script.arguments]
    return _torchrun_job(spec, parser.parse_job(words), parser)


def _torchrun_job(spec: JobSpec, args: argparse.Namespace, parser: _Parser) -> TorchrunJob:
    contract = replace(spec.contract, processes_per_host=_explicit_ranks(args))
    if not args.module:
        args.training_script = find_script(args.training_script, contract.source_dir)
        check_script(args.training_script, runs_itself=args.no_python and not args.run_path)
    asks_for_ranks = args.nproc_per_node is not None or any(
        getattr(args, name) != parser.get_default(name) for name in _RANK_FLAGS
    )
    if args.nproc_per_node is None:  # a contract's distribution starts a rank per device
        args.nproc_per_node = "auto" if contract.distribution else "1"
    cluster = cluster_options(spec, args, parser)
    # Not with --standalone: its ranks are to form a world of their own.
    if asks_for_ranks and cluster is None and not args.standalone:
        contract = with_detected_contract(contract)
    outer = _existing_job(contract, cluster)
    if outer is not None:
        cluster = None
        outer.apply(args, has_ranks=contract.distribution is not None or asks_for_ranks)
    emulated = emulated_ranks(spec, args)
    ranks_here = emulated or _local_ranks(args.nproc_per_node)
    args.nproc_per_node = str(ranks_here)
    shutdown_s = getattr(args, "shutdown_timeout", None)
    return TorchrunJob(
        spec=replace(spec, contract=contract),
        args=args,
        ranks_here=ranks_here,
        emulated_ranks=emulated,
        world_size=ranks_here * (cluster.ranks_hosts if cluster else _max_hosts(args.nnodes)),
        keeps_own_logs=any(getattr(args, name, None) not in (None, "0", []) for name in _LOG_FLAGS),
        shutdown_s=_SHUTDOWN_S if shutdown_s is None else int(shutdown_s),
        asks_for_ranks=asks_for_ranks,
        cluster=cluster,
    )


def _torchrun_flags(argv: Sequence[str], script: Script) -> tuple[str, ...]:
    """Return the words before the script that are torchrun's, not ours."""
    # Searched from the end: a flag's value may be the same word as the script.
    end = len(argv) - len(script.arguments) - 1
    while argv[end] != script.path:
        end -= 1
    ours = _Parser(add_help=False, allow_abbrev=False)
    add_options(ours)
    return tuple(ours.parse_known_args([*argv[:end]])[1])


def _existing_job(contract: ContractOptions, cluster: ClusterOptions | None) -> ExistingJob | None:
    if not contract.contracts:
        return None
    training = cluster.training.name if cluster is not None else None
    outer = find_existing_job(contract, training)
    if outer is not None and cluster is not None and not outer.has_group(cluster.training):
        raise UsageError(
            f"This is host {outer.topology.here} of a job that has hosts already: "
            f"{', '.join(outer.topology.hosts)}. Leave out --engine and --group, or name a group "
            "of that job by --group NAME=HOSTS; headrace cluster join makes them a cluster."
        )
    return outer


def tie_ranks_to_torchrun(
    args: argparse.Namespace,
    script_env: ScriptEnvironment,
    pid_pipe: int | None = None,
    restarts: int | None = None,
) -> None:
    """Change torchrun's arguments so that each rank ends when torchrun does.

    Args:
        pid_pipe: The write end of a pipe of this process, into which each rank writes its pid.
        restarts: How often the ranks were restarted, where torchrun does not count that itself.
    """
    script = [args.training_script, *script_env.arguments, *args.training_script_args]
    if args.no_python and not args.run_path:
        script = program_command(args.training_script, args.training_script_args, script_env)
    elif script_env.folder is not None and not args.module:
        script[0] = str(Path(script[0]).absolute())
    if args.run_path:  # runs in torchrun's own child processes, which torch ties to itself
        args.training_script_args = script[1:]
        return
    if not args.no_python:
        python = env.PYTHON_EXEC.get() or sys.executable
        script = [python, "-u", *(["-m"] if args.module else []), *script]
    if script_env.runs_once:
        script = [*command_without_rank_variables(), *script]
    if script_env.folder is not None:
        script = ["env", f"--chdir={script_env.folder}", *script]
    if restarts is not None:
        script = ["env", f"{env.RESTART_COUNT.name}={restarts}", *script]
    tied = parent_bound_command(sys.executable, script_env.with_mounts(script), pid_pipe=pid_pipe)
    program, *arguments = tied
    args.no_python, args.module = True, False
    args.training_script, args.training_script_args = program, arguments


def threads_per_rank(ranks_here: int) -> int:
    """Return how many CPU threads a rank may use so that the ranks share this host's cores."""
    return max(1, len(os.sched_getaffinity(0)) // ranks_here)


def flags_without_value() -> frozenset[str]:
    """Return the flags, in all their spellings, that take no value."""
    actions = _parser().actions()
    return frozenset(flag for flag, action in actions.items() if action.nargs == 0)


def _parser() -> _Parser:
    parser = _Parser(parents=[torchrun.get_args_parser()], prog="headrace run", add_help=False)
    add_options(parser)
    ranks = parser.actions()["--nproc-per-node"]
    if ranks.default == "1":  # else PET_NPROC_PER_NODE is set
        ranks.default = None
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if "training_script" in message:
            message = "No script is named"
        raise UsageError(f"{message}. {_RUN_SYNTAX}")

    def parse_job(self, argv: Sequence[str]) -> argparse.Namespace:
        args, unknown = self.parse_known_args(list(argv))
        if unknown:
            raise UsageError(_unknown_flag_message(unknown[0], list(self.actions())))
        return args

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


def _explicit_ranks(args: argparse.Namespace) -> int | None:
    """Return the user's number of ranks per host; None: none is given, or a word such as auto."""
    given = args.nproc_per_node or ""
    return int(given) if given.isdecimal() else None


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


def _max_hosts(nnodes: str) -> int:
    try:
        fewest, most = torchrun.parse_min_max_nnodes(nnodes)
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"--nnodes {nnodes}: write a number, or MIN:MAX.") from error
    if not 1 <= fewest <= most:
        raise UsageError(f"--nnodes {nnodes}: at least one host, and MIN no more than MAX.")
    return int(most)
