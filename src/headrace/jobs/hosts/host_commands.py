"""The command of each host of a job, and the working directory for other machines."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headrace.cluster.agent import HostProgram
from headrace.cluster.placement import PlacedAgent
from headrace.core import env
from headrace.jobs.environment.host_environment import is_below_default_base
from headrace.jobs.environment.host_layout import HostLayout, free_master_port, layout_hosts
from headrace.jobs.hosts.driver_protocol import HostAssignment
from headrace.jobs.hosts.script_runner import HostScript
from headrace.jobs.recording import Recording
from headrace.jobs.spec import ScriptOptions
from headrace.jobs.torchrun_args import TorchrunJob
from headrace.platforms.instance_groups import GroupSpec
from headrace.records.run_folder import Attempt, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingDir:
    """The folder that is copied to hosts on other machines, and the command line there.

    Attributes:
        folder: The folder; its copy is the ranks' working directory.
        argv: The command line, with the script's path relative to the folder.
        scripts: The script's own folder, relative to the folder; "": the same folder.
    """

    folder: str
    argv: tuple[str, ...]
    scripts: str = ""

    def named(self, script: str) -> str:
        """Return a script's path relative to the folder; a module's name stays as it is."""
        path = Path(script).absolute()
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else script


def job_working_dir(args: argparse.Namespace, argv: Sequence[str]) -> WorkingDir:
    """Return the working directory of a job.

    It is the current folder where the script lies in it, so that files the script opens by relative
    path are copied, too; otherwise it is the script's own folder.

    Args:
        args: The parsed flags.
        argv: The command line that was parsed.
    """
    here = Path.cwd()
    # Searched from the end: the script's own arguments may include its name, or "--".
    place = (
        len(argv)
        - 1
        - list(reversed(argv)).index(args.typed_script, len(args.training_script_args))
    )
    before, after = argv[:place], argv[place + 1 :]
    if args.module or args.no_python:
        return WorkingDir(folder=str(here), argv=tuple(argv))
    script = Path(os.path.normpath(Path(args.training_script).absolute()))
    folder = here if script.is_relative_to(here) else script.parent
    name = script.relative_to(folder)
    scripts = "" if name.parent == Path() else str(name.parent)
    return WorkingDir(folder=str(folder), argv=(*before, str(name), *after), scripts=scripts)


_EMULATED = "127.0.0.{}"
_FIRST_EMULATED = 2  # 127.0.0.1 is the machine's own address
_PYTHON_MODULE = ("{python}", "-u", "-P", "-m")
_AGENT_FLAGS = ("--parent", "{parent}", "--announce", "{announce}", "--go", "{go}")


class HostCommands:
    """The commands of the hosts, for one attempt.

    Args:
        job: The parsed torchrun flags.
        groups: The instance groups whose hosts run something, the training group first.
        argv: The command line, which each host parses again.
        working_dir: The job's working directory.
        folder: The run folder.
        attempt: The attempt that starts.
        is_told: The script has a platform contract.
    """

    def __init__(
        self,
        job: TorchrunJob,
        groups: Sequence[GroupSpec],
        argv: Sequence[str],
        working_dir: WorkingDir,
        folder: RunFolder,
        attempt: Attempt,
        *,
        is_told: bool,
    ) -> None:
        self._job = job
        self._groups = groups
        self._argv = argv
        self._working_dir = working_dir
        self._folder = folder
        self._attempt = attempt
        self._is_told = is_told
        self._recording: Recording | None = None
        self._plan: HostLayout | None = None

    def plan(self, agents: Sequence[PlacedAgent], can_bind_mount: Callable[[], bool]) -> None:
        """Set the layout of the hosts, for the commands that follow.

        Args:
            agents: One per host.
            can_bind_mount: Returns whether processes of all hosts may have a mount namespace;
                called only under a platform contract.
        """
        if not self._is_told:
            return
        # Emulated hosts share one address; scripts that listen need one each.
        emulated = len({agent.facts.address for agent in agents}) < len(agents)
        addresses = {
            agent.host.node_id: _EMULATED.format(_FIRST_EMULATED + number)
            if emulated
            else agent.facts.address
            for number, agent in enumerate(self._in_order(agents))
        }
        self._plan = layout_hosts(
            self._folder.path.name,
            {
                group.name: (
                    _instance_type(group, agents),
                    [addresses[agent.host.node_id] for agent in _agents_of(group.name, agents)],
                )
                for group in self._groups
            },
            distribution=self._job.distribution,
            distributed=self._groups[0].name,
            can_bind_mount=not is_below_default_base(
                self._job.contract, self._job.args.training_script
            )
            and can_bind_mount(),
            master_port=free_master_port(self._job.contract.contracts) if emulated else 0,
        )

    def program(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, restarts: int, *,
        variables: Mapping[str, str], files: Mapping[str, bytes], version: int,
    ) -> HostProgram:  # fmt: skip
        """Return the program of a host.

        Args:
            agents: One per host.
            agent: The host's agent.
            restarts: How often the job's ranks were started before.
            variables: Variables of its script, besides those of the recording.
            files: Files for the program, by name.
            version: The version of the files.
        """
        is_here = agent.facts.is_drivers
        logs = str(self._folder.logs(self._attempt.number)) if is_here else "{logs}"
        if self._runs_without_ranks(agent):
            command: tuple[str, ...] = (
                *_PYTHON_MODULE, "headrace.jobs.hosts.script_runner", *_AGENT_FLAGS, "--logs", logs,
                "--once", json.dumps(asdict(self._host_script(agents, agent, restarts))),
            )  # fmt: skip
        else:
            command = (
                *_PYTHON_MODULE, "headrace.jobs.torchrun", *_AGENT_FLAGS, "--logs", logs,
                "--member", self._assignment(agents, agent, restarts).to_json(),
                "--", *(self._argv if is_here else self._working_dir.argv),
            )  # fmt: skip
        return HostProgram(
            command=command,
            folder=str(Path.cwd()) if is_here else None,
            environment=self._here(agents, variables) if is_here else self._elsewhere(variables),
            is_whole=is_here,
            version=version,
            files=files,
        )

    def script_address(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> str | None:
        """Return a host's address in the layout; None: there is no platform contract."""
        return None if self._plan is None else self._plan.addresses[self._name(agents, agent)]

    def recorded(self) -> dict[str, str | None]:
        """Return the variables that have all ranks on this machine recorded together."""
        if self._recording is None:
            self._recording = Recording(self._folder, self._attempt, self._job.options)
        return self._recording.environment()

    def finish(self) -> None:
        """Close the records."""
        if self._recording is not None:
            self._recording.finish()

    def _runs_without_ranks(self, agent: PlacedAgent) -> bool:
        of_training = agent.host.group == self._groups[0].name
        return not of_training or (self._is_told and self._job.distribution is None)

    def _assignment(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, restarts: int
    ) -> HostAssignment:
        training = _agents_of(self._groups[0].name, agents)
        first = training[0].facts
        return HostAssignment(
            prefix=f"{agent.host.group}/{agent.host.name}:{{rank}}",
            restarts=restarts,
            hosts=len(training),
            number=training.index(agent),
            address=agent.facts.address,
            master_address=first.address,
            master_port=first.free_port,
            plan=self._plan.to_json() if self._plan is not None else None,
            host=self._name(agents, agent),
            cores=agent.host.cpus,
            devices=agent.host.gpus,
            ranks=self._job.args.emulated_ranks,
            kept_as=self._sync_name(agents, agent),
            kept_by=self._sync_names(agents),
            sends_part=not agent.facts.is_drivers,
        )

    def _host_script(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, restarts: int
    ) -> HostScript:
        assert self._plan is not None  # else every host has ranks
        args = self._job.args
        return HostScript(
            prefix=f"{agent.host.group}/{agent.host.name}",
            name=agent.host.name,
            number=self._in_order(agents).index(agent),
            restarts=restarts,
            script=args.training_script
            if agent.facts.is_drivers
            else self._working_dir.named(args.training_script),
            is_module=bool(args.module),
            is_program=bool(args.no_python),
            arguments=tuple(args.training_script_args),
            contract=asdict(self._job.contract),
            around=asdict(self._script_options(agent)),
            plan=self._plan.to_json(),
            host=self._name(agents, agent),
            cores=agent.host.cpus,
            devices=agent.host.gpus,
            uploads=asdict(self._job.uploads),
            kept_as=self._sync_name(agents, agent),
            kept_by=self._sync_names(agents),
            sends_part=not agent.facts.is_drivers,
        )

    def _script_options(self, agent: PlacedAgent) -> ScriptOptions:
        options = self._job.around
        if agent.facts.is_drivers:
            return options
        dependencies = tuple(self._working_dir.named(path) for path in options.dependencies)
        return replace(options, dependencies=dependencies)

    def _sync_name(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> str:
        """Return the sync name of a host; hosts that share a checkpoint folder have one name."""
        in_order = self._in_order(agents)
        own_folder = any(name.startswith("sagemaker") for name in self._job.contract.contracts)
        if agent.facts.is_drivers and not own_folder:
            agent = next(each for each in in_order if each.facts.is_drivers)
        return f"host-{in_order.index(agent) + 1}"

    def _sync_names(self, agents: Sequence[PlacedAgent]) -> tuple[str, ...]:
        return tuple(sorted({self._sync_name(agents, agent) for agent in agents}))

    def _name(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> str:
        """Return a host's name in the layout, which its scripts see."""
        if self._plan is None:
            return agent.host.name
        return self._plan.hosts[self._in_order(agents).index(agent)]

    def _in_order(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        return [agent for group in self._groups for agent in _agents_of(group.name, agents)]

    def _here(self, agents: Sequence[PlacedAgent], variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of ranks on this machine, which are recorded together."""
        variables_here = {**env.whole_environment(), env.RUN_DIR.name: str(self._folder.path)}
        recorded = self.recorded()
        here = sum(agent.facts.is_drivers for agent in agents)
        ranks = self._job.ranks_here * here
        if ranks > 1:  # emulated hosts share the machine's cores
            cores = len(os.sched_getaffinity(0))
            variables_here.setdefault(env.OMP_NUM_THREADS.name, str(max(1, cores // ranks)))
        for name, value in recorded.items():
            if value is None:
                variables_here.pop(name, None)
            else:
                variables_here[name] = value
        return {**variables_here, **variables}

    def _elsewhere(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of ranks on another machine."""
        return {**env.portable_environment(), env.RUN_DIR.name: "{folder}", **variables}


def _agents_of(group: str, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
    return [agent for agent in agents if agent.host.group == group]


def _instance_type(group: GroupSpec, agents: Sequence[PlacedAgent]) -> str:
    if group.instance_type:
        return group.instance_type
    has_devices = any(agent.host.gpus for agent in _agents_of(group.name, agents))
    return "local_gpu" if has_devices else "local"
