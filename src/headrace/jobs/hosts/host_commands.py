"""The commands of each host of a job: its ranks', and before them that of pip for requirements.

Also the working directory for other machines. On each host pip installs the requirements before any
other process of the job starts (cluster/requirements_installer.py).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.cluster.agent import HostProgram
from headrace.cluster.ray_cluster import PlacedAgent
from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.jobs.environment.host_environment import (
    HostLayout,
    free_master_port,
    is_below_default_base,
    layout_hosts,
)
from headrace.jobs.host_run import HostAssignment, Recording
from headrace.jobs.hosts.host_records import HostRecords
from headrace.jobs.hosts.rank_group import HostExit, RankGroupFactory, StopRequest
from headrace.jobs.requirements import MAX_INSTALL_S, SKIP_HINT, InstallProgress
from headrace.jobs.spec import JobSpec
from headrace.jobs.torchrun_args import TorchrunJob, threads_per_rank
from headrace.jobs.tracking import target_elsewhere
from headrace.platforms.instance_groups import GroupSpec
from headrace.records.host_place import HostPlace
from headrace.records.layout import FIRST_RANK
from headrace.records.run_folder import Attempt, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingDir:
    """The folder that is copied to hosts on other machines."""

    folder: str  # its copy is the ranks' working directory
    scripts: str = ""  # the script's own folder, relative to `folder`; "": the same folder

    def named(self, script: str) -> str:
        """Return a script's path relative to the folder; a module's name stays as it is."""
        path = Path(os.path.normpath(Path(script).absolute()))
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else script


def job_working_dir(job: TorchrunJob) -> WorkingDir:
    """Return the working directory of a job.

    It is the current folder where the script lies in it, so that files the script opens by relative
    path are copied, too; otherwise it is the script's own folder.
    """
    here = Path.cwd()
    if job.spec.script.is_module or job.spec.script.is_program:
        return WorkingDir(folder=str(here))
    script = Path(os.path.normpath(Path(job.script).absolute()))
    folder = here if script.is_relative_to(here) else script.parent
    parent = script.relative_to(folder).parent
    return WorkingDir(folder=str(folder), scripts="" if parent == Path() else str(parent))


_EMULATED = "127.0.0.{}"
_FIRST_EMULATED = 2  # 127.0.0.1 is the machine's own address
_PYTHON_MODULE = ("{python}", "-u", "-P", "-m")
_AGENT_FLAGS = ("--parent", "{parent}", "--announce", "{announce}", "--go", "{go}")


@dataclass
class HostCommands:
    """The commands of the hosts, for one attempt."""

    job: TorchrunJob
    groups: Sequence[GroupSpec]  # those whose hosts run something, the training group first
    working_dir: WorkingDir
    folder: RunFolder
    attempt: Attempt
    has_driver: bool = False  # one script, which starts Ray's own workers, instead of ranks

    def __post_init__(self) -> None:
        self.records = HostRecords(self.folder, self.attempt, self.working_dir.folder)
        self._recording: Recording | None = None
        self._plan: HostLayout | None = None

    def plan(self, agents: Sequence[PlacedAgent], can_bind_mount: Callable[[], bool]) -> None:
        """Set the layout of the hosts, for the commands that follow.

        `can_bind_mount`, which says whether processes of all hosts may have a mount namespace, is
        called only under a platform contract.
        """
        if not self.job.spec.contract.has_platform:
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
            self.folder.path.name,
            {
                group.name: (
                    _instance_type(group, agents),
                    [addresses[agent.host.node_id] for agent in _agents_of(group.name, agents)],
                )
                for group in self.groups
            },
            distribution=self.job.distribution,
            distributed=self.groups[0].name,
            can_bind_mount=not is_below_default_base(self.job.spec.contract, self.job.script)
            and can_bind_mount(),
            master_port=free_master_port(self.job.spec.contract.contracts) if emulated else 0,
        )

    def program(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, restarts: int, *,
        variables: Mapping[str, str], files: Mapping[str, bytes], version: int,
    ) -> HostProgram:  # fmt: skip
        """Return the program of a host, whose ranks were started `restarts` times before.

        The variables are those of its script, besides those of the recording.
        """
        is_here = agent.facts.is_drivers
        if not self.has_driver:
            self.recorded(agents)
        logs = str(self.folder.logs(self.attempt.number)) if is_here else "{logs}"
        has_ranks = not self._runs_without_ranks(agent)
        module = "headrace.jobs.torchrun" if has_ranks else "headrace.jobs.hosts.script_runner"
        assignment = self._assignment(agents, agent, restarts, has_ranks=has_ranks)
        command = (
            *_PYTHON_MODULE, module, *_AGENT_FLAGS, "--logs", logs,
            "--assignment", "{assignment}", *(["--"] if has_ranks else []),
        )  # fmt: skip
        # In a file that only this user reads: the job's variables are in it, and others see argv.
        files = {**files, "assignment": assignment.to_json().encode()}
        if not is_here:
            files |= target_elsewhere(self.folder)
        elsewhere = {**env.portable_environment(), env.RUN_DIR.name: "{folder}", **variables}
        return HostProgram(
            command=command,
            folder=str(Path.cwd()) if is_here else None,
            environment=self._here(agents, variables) if is_here else elsewhere,
            is_whole=is_here,
            version=version,
            files=files,
        )

    def recorder(self, agent: PlacedAgent, link: str) -> HostProgram:
        """Return the program that records a host of another machine, found by a link's name."""
        place = self.records.place(agent)
        assert place is not None, "the driver's own machine is recorded already"
        request = {"place": asdict(place), "spec": self._spec(agent).to_json(), "link": link}
        return HostProgram(
            command=(
                *_PYTHON_MODULE, "headrace.jobs.hosts.host_recorder", "--parent", "{parent}",
                "--announce", "{announce}", "--request", "{request}",
            ),
            folder=None,
            environment={**env.portable_environment(), env.RUN_DIR.name: "{folder}"},
            is_whole=False,
            files={"request": json.dumps(request).encode()},
        )  # fmt: skip

    def script_address(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> str | None:
        """Return a host's address in the layout; None: there is no platform contract."""
        return None if self._plan is None else self._plan.addresses[self._name(agents, agent)]

    def recorded(self, agents: Sequence[PlacedAgent]) -> dict[str, str | None]:
        """Return the variables that have all ranks on this machine recorded together.

        The recording begins here, which takes in also what other machines record.
        """
        if self._recording is None:
            groups = {agent.host.group or "" for agent in agents if agent.facts.is_drivers}
            group = groups.pop() if len(groups) == 1 else ""
            here = HostPlace(attempt=self.attempt.number, group=group)
            self._recording = Recording(
                self.folder, here, self.job.spec.recording, self._first_source(agents)
            )
        return self._recording.environment()

    def _first_source(self, agents: Sequence[PlacedAgent]) -> str:
        """Return the log of the first rank, or of the first host where there are no ranks."""
        training = _agents_of(self.groups[0].name, agents)
        if training and self._runs_without_ranks(training[0]):
            return training[0].host.name
        return FIRST_RANK

    def finish(self) -> None:
        """Close the records."""
        if self._recording is not None:
            self._recording.finish()

    def _runs_without_ranks(self, agent: PlacedAgent) -> bool:
        of_training = agent.host.group == self.groups[0].name
        return not of_training or (
            self.job.spec.contract.has_platform and self.job.distribution is None
        )

    def _assignment(
        self, agents: Sequence[PlacedAgent], agent: PlacedAgent, restarts: int, *, has_ranks: bool
    ) -> HostAssignment:
        training = _agents_of(self.groups[0].name, agents)
        first = training[0].facts
        prefix = f"{agent.host.group}/{agent.host.name}"
        return HostAssignment(
            spec=self._spec(agent).to_json(),
            name=agent.host.name,
            prefix=f"{prefix}:{{rank}}" if has_ranks else prefix,
            restarts=restarts,
            hosts=len(training),
            number=(training if has_ranks else self._in_order(agents)).index(agent),
            address=agent.facts.address,
            master_address=first.address,
            master_port=first.free_port,
            plan=self._plan.to_json() if self._plan is not None else None,
            host=self._name(agents, agent),
            cores=agent.host.cpus,
            devices=agent.host.gpus,
            ranks=self.job.emulated_ranks,
            sync_name=self._sync_name(agents, agent),
            all_sync_names=tuple(sorted({self._sync_name(agents, each) for each in agents})),
            sends_part=not agent.facts.is_drivers,
            place=self._place(agent),
        )

    def _place(self, agent: PlacedAgent) -> dict[str, Any] | None:
        place = None if self.has_driver else self.records.place(agent)
        return None if place is None else asdict(place)

    def _spec(self, agent: PlacedAgent) -> JobSpec:
        """Return the job with paths as they are on a host."""
        spec = self.job.spec
        if agent.facts.is_drivers:
            return spec
        named = self.working_dir.named
        is_file = not (spec.script.is_module or spec.script.is_program)
        dependencies = tuple(named(path) for path in spec.environment.dependencies)
        return replace(
            spec,
            script=replace(spec.script, path=named(self.job.script)) if is_file else spec.script,
            environment=replace(spec.environment, dependencies=dependencies),
        )

    def _sync_name(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> str:
        """Return the sync name of a host; hosts that share a checkpoint folder have one name."""
        in_order = self._in_order(agents)
        own_folder = any(name.startswith("sagemaker") for name in self.job.spec.contract.contracts)
        if agent.facts.is_drivers and not own_folder:
            agent = next(each for each in in_order if each.facts.is_drivers)
        return f"host-{in_order.index(agent) + 1}"

    def _name(self, agents: Sequence[PlacedAgent], agent: PlacedAgent) -> str:
        """Return a host's name in the layout, which its scripts see."""
        if self._plan is None:
            return agent.host.name
        return self._plan.hosts[self._in_order(agents).index(agent)]

    def _in_order(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        return [agent for group in self.groups for agent in _agents_of(group.name, agents)]

    def _here(self, agents: Sequence[PlacedAgent], variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of ranks on this machine, which are recorded together."""
        variables_here = {**env.whole_environment(), env.RUN_DIR.name: str(self.folder.path)}
        recorded = self.recorded(agents)
        here = sum(agent.facts.is_drivers for agent in agents)
        ranks = self.job.ranks_here * here
        if ranks > 1:  # emulated hosts share the machine's cores
            variables_here.setdefault(env.OMP_NUM_THREADS.name, str(threads_per_rank(ranks)))
        for name, value in recorded.items():
            if value is None:
                variables_here.pop(name, None)
            else:
                variables_here[name] = value
        return {**variables_here, **variables}


def _agents_of(group: str, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
    return [agent for agent in agents if agent.host.group == group]


def _instance_type(group: GroupSpec, agents: Sequence[PlacedAgent]) -> str:
    if group.instance_type:
        return group.instance_type
    has_devices = any(agent.host.gpus for agent in _agents_of(group.name, agents))
    return "local_gpu" if has_devices else "local"


_KILLED = (-9, 137)


@dataclass
class HostInstalls:
    """The installations of one job.

    The constructor raises UsageError where the file is not in the folder that is copied.
    """

    file: Path
    working_dir: WorkingDir
    is_named: bool  # by the user; otherwise the file was found in the code folder
    is_copied: bool  # the working directory, to other machines
    folder: RunFolder
    attempt: Attempt  # the one that starts

    def __post_init__(self) -> None:
        if self.is_copied and not self.file.is_relative_to(self.working_dir.folder):
            raise UsageError(
                f"{self.file} lies outside {self.working_dir.folder}, which goes along to the "
                "hosts. Put it beside the script, or start the job from a folder that holds both."
            )
        self._job = secrets.token_hex(8)
        self._progress = InstallProgress(self.file.name, self.folder, self.attempt.number)
        self.handle_message = self._progress.handle_message
        self._done: set[str] = set()  # Ray node ids of the ranks' hosts that are done

    def command(self, host: str, *, is_here: bool) -> tuple[str, ...]:
        """Return the installer's command on a host, for an agent's `HostProgram`."""
        logs = str(self.folder.logs(self.attempt.number)) if is_here else "{logs}"
        named = "yes" if self.is_named else "no"
        file = self.file if is_here else self.file.relative_to(self.working_dir.folder)
        return (
            "{python}", "-u", "-P", "-m", "headrace.cluster.requirements_installer",
            "--parent", "{parent}", "--announce", "{announce}", "--job", self._job,
            "--file", str(file), "--named", named, "--logs", logs,
            "--name", host, "--longest-s", str(MAX_INSTALL_S),
        )  # fmt: skip

    def install(
        self, agents: Sequence[PlacedAgent], rank_group: RankGroupFactory, stop: StopRequest
    ) -> list[HostExit]:
        """Install the file on the ranks' hosts, and return the ends of installers on lost hosts.

        Raises LaunchError where it could not be installed on a host.
        """
        if {agent.host.node_id for agent in agents} <= self._done:
            return []
        installers = rank_group(agents, self.handle_message)
        ends = installers.run([self._program(agent) for agent in agents], stop)
        self._done |= {end.agent.host.node_id for end in ends if end.returncode == 0}
        failed = [end for end in ends if end.returncode != 0]
        is_lost = any(end.returncode is None for end in ends)
        if failed and not is_lost and not stop.is_requested():
            raise LaunchError(self._message(failed))
        return failed

    def _program(self, agent: PlacedAgent) -> HostProgram:
        is_here = agent.facts.is_drivers
        return HostProgram(
            command=self.command(agent.host.name, is_here=is_here),
            folder=str(Path.cwd()) if is_here else None,
            environment=env.whole_environment() if is_here else env.portable_environment(),
            is_whole=is_here,
        )

    def _message(self, failed: Sequence[HostExit]) -> str:
        hosts = [end.host for end in failed if end.host in self._progress.why_not]
        if not hosts:
            end = failed[0]
            killed = "; often memory ran out" if end.returncode in _KILLED else ""
            return (
                f"{end.host}: what installs {self.file.name} ended with {end.returncode}{killed}, "
                f"and no rank was started. {SKIP_HINT}"
            )
        return (
            f"{self.file.name} could not be installed on {', '.join(hosts)}, and no rank was "
            f"started. All that pip said: {self.folder.logs(self.attempt.number)}/"
            f"requirements-*.log. {SKIP_HINT}"
        )
