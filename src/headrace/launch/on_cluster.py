"""A job on a cluster: this process is its driver, and torchrun runs on every host that trains.

Ray places and watches over one agent a host; torchrun's ranks meet by the address of the first
host. A rank that fails ends the ranks of all hosts; then all of them are started anew, as often as
--max-restarts says. A host that is lost counts on its own: --max-preemptions.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from headrace.cluster.agent import Program
from headrace.cluster.connection import Host, connected, living_hosts, wait_for_hosts
from headrace.cluster.local import LocalCluster
from headrace.cluster.machine import Mark, marked
from headrace.cluster.placement import (
    AgentsEverywhere,
    DriverPlacement,
    NotPlacedError,
    PlacedAgent,
    Placement,
)
from headrace.cluster.ray_import import import_ray
from headrace.contracts.groups import Group
from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.launch.cluster_flags import ClusterOptions
from headrace.launch.failure import first_failure
from headrace.launch.flags import TorchrunJob
from headrace.launch.gang import Gang, HostEnd, StopRequest
from headrace.launch.member import Member
from headrace.launch.offload_choice import OffloadChoice
from headrace.launch.offloading import Offloading
from headrace.launch.ray_scripts import ray_variables, tell_unrecorded
from headrace.launch.recording import Recording
from headrace.launch.requirements import Requirements, find_requirements
from headrace.launch.showing import Shown
from headrace.launch.supervise import STOPPING, exit_code_of
from headrace.launch.told import tell
from headrace.launch.travelling import Luggage, pack_luggage
from headrace.records.run_folder import Attempt, RunFolder

_GONE_S = 30.0  # Ray looks for lost hosts every few seconds, several times
_LOOK_EVERY_S = 0.5
_Placed = TypeVar("_Placed")
_AGENTS_EXTRA_S = 10.0  # torchrun needs some time itself after its ranks have ended


def run_on_cluster(
    job: TorchrunJob, options: ClusterOptions, argv: Sequence[str], folder: RunFolder,
    attempt: Attempt,
) -> int:  # fmt: skip
    """Run a job on the hosts of a cluster and return its exit code.

    Args:
        job: What torchrun's flags ask for.
        options: What is asked of the cluster.
        argv: The command line, as each host reads it again.
        folder: The run's.
        attempt: The attempt that begins.

    Raises:
        UsageError: Ray is not installed.
        LaunchError: There is no such cluster, it lacks hosts, or no agent starts on them.
    """
    stop = StopRequest()
    stop.heed(STOPPING)
    groups = [options.training, *options.others]
    for group in () if options.driver else options.others:
        if group.name != options.offload:
            tell(f"headrace: group {group.name}: its hosts have no part in this job; --offload "
                 f"{group.name} would have them make batches\n")  # fmt: skip
    luggage = pack_luggage(job.args, argv)
    file = find_requirements(options.requirements, job.args)
    requirements = None
    if file is not None:
        travels = options.address is not None
        requirements = Requirements(
            file, luggage, is_named=options.requirements is not None, travels=travels,
            folder=folder, attempt=attempt,
        )  # fmt: skip
    with (
        _address(options, groups) as address,
        # On emulated hosts the ranks stand where this process does.
        connected(address, folder=luggage.folder if options.address else None) as ray,
    ):
        stop.heed(STOPPING)  # Ray has its own ideas
        starts = _Starts(ray, job, options, argv, luggage, folder, attempt, requirements)
        with marked(folder.logs(attempt.number)) as mark:
            return starts.run(stop, mark)


@contextmanager
def _address(options: ClusterOptions, groups: Sequence[Group]) -> Iterator[str]:
    if options.address is not None:
        yield options.address
        return
    told = ", ".join(f"{group.name} {group.hosts}" for group in groups)
    tell(f"headrace: a Ray cluster on this machine, hosts emulated: {told}\n")
    try:
        devices = env.visible_devices(torch.accelerator.device_count())
        cluster = LocalCluster(groups, devices=devices)
    except LaunchError:
        import_ray()  # tells the remedy where it is missing; before, it would not see the token
        raise
    try:
        yield cluster.address
    finally:
        cluster.close()


class _Starts:
    """The starts of a job's ranks, until one ends well or nothing is left of the budgets."""

    def __init__(
        self, ray: ModuleType, job: TorchrunJob, options: ClusterOptions, argv: Sequence[str],
        luggage: Luggage, folder: RunFolder, attempt: Attempt, requirements: Requirements | None,
    ) -> None:  # fmt: skip
        self._ray = ray
        self._job = job
        self._options = options
        self._argv = argv
        self._luggage = luggage
        self._folder = folder
        self._attempt = attempt
        self._requirements = requirements
        self._restarts_left = int(job.args.max_restarts)
        self._preemptions_left = options.max_preemptions
        self._lost: set[str] = set()  # hosts, by Ray's number
        self._recording: Recording | None = None
        self._shown = Shown()
        self._offloading: Offloading | None = None

    def run(self, stop: StopRequest, mark: Mark) -> int:
        number = 0
        try:
            if self._options.offload is not None:
                group = self._options.offload
                named = {one.name: one for one in self._options.others}
                self._offloading = Offloading(
                    self._ray, group, self._luggage, mark, self._shown, self._offload_choice(),
                    self._requirements,
                    declared=named.get(group), training=self._options.training.name,
                )  # fmt: skip
            while True:
                ends = self._start(number, stop, mark)
                if stop.number is not None:
                    return 128 + stop.number
                if all(end.returncode == 0 for end in ends):
                    return 0
                if not self._may_start_anew(ends):
                    return _exit_code(ends)
                number += 1
        finally:
            for stopping in STOPPING:
                signal.signal(stopping, signal.SIG_IGN)
            if self._offloading is not None:
                self._offloading.close()
            self._shown.close()
            if self._recording is not None:
                self._recording.finish()

    def _offload_choice(self) -> OffloadChoice | None:
        options = self._options
        if options.offload is None or not options.offload_if_it_helps:
            return None
        ranks = self._job.ranks_here * options.training.hosts
        return OffloadChoice(self._folder.path, self._attempt.number, options.offload, ranks, tell)

    def _start(self, number: int, stop: StopRequest, mark: Mark) -> list[HostEnd]:
        placement = self._placed(stop, partial(self._place, stop, mark))
        if placement is None:
            return []
        try:
            agents = placement.agents
            if self._requirements is not None:
                unwell = self._install(self._requirements, agents, stop, mark)
                if unwell or stop.is_asked():
                    return unwell
            if self._offloading is not None:
                self._offloading.serve(agents)
            if self._options.driver and number == 0:
                tell_unrecorded(agents[0], self._job.options.profile)
            programs = [self._program(agents, one, number) for one in agents]
            return self._gang(agents).run(programs, stop)
        finally:
            placement.close()

    def _install(
        self, requirements: Requirements, agents: Sequence[PlacedAgent], stop: StopRequest,
        mark: Mark,
    ) -> list[HostEnd]:  # fmt: skip
        """Install what the job needs wherever the script runs, or has Ray run something."""
        if not self._options.driver:
            return requirements.install(agents, partial(self._gang, agents), stop)
        groups = {self._options.training.name, *(one.name for one in self._options.others)}
        everywhere = self._placed(
            stop, lambda hosts: AgentsEverywhere(self._ray, groups, hosts, mark)
        )
        if everywhere is None:
            return []
        try:
            agents = everywhere.agents
            return requirements.install(agents, partial(self._gang, agents), stop)
        finally:
            everywhere.close()

    def _gang(
        self, agents: Sequence[PlacedAgent],
        hear: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> Gang:  # fmt: skip
        return Gang(
            self._ray,
            agents,
            grace_s=float(self._job.shutdown_s) + _AGENTS_EXTRA_S,
            logs=self._folder.logs(self._attempt.number),
            shown=self._shown,
            meanwhile=self._tend,
            hear=hear,
        )

    def _tend(self) -> None:
        if self._offloading is not None:
            self._offloading.tend()

    def _place(self, stop: StopRequest, mark: Mark, hosts: Sequence[Host]) -> Placement:
        placement = DriverPlacement if self._options.driver else Placement
        return placement(self._ray, self._options.training, hosts, mark, is_over=stop.is_asked)

    def _placed(
        self, stop: StopRequest, place: Callable[[Sequence[Host]], _Placed]
    ) -> _Placed | None:
        """Return what is placed, as soon as there are enough hosts; None: the job is over."""
        options = self._options
        group = options.training
        wanted = [group, *options.others] if options.driver else [group]
        deadline_s = time.monotonic() + options.hosts_s
        while not stop.is_asked():
            left_s = max(0.0, deadline_s - time.monotonic())
            hosts = wait_for_hosts(
                self._ray, wanted, longest_s=left_s, tell=tell, without=self._lost,
                is_over=stop.is_asked,
            )  # fmt: skip
            if stop.is_asked():
                break
            try:
                return place(hosts)
            except NotPlacedError as error:
                # A host may have gone a moment ago, or another job be about to end.
                if time.monotonic() > deadline_s and not stop.is_asked():
                    raise
                tell(f"headrace: {error} Trying again.\n")
        return None

    def _program(self, agents: Sequence[PlacedAgent], agent: PlacedAgent, restarts: int) -> Program:
        first, is_here = agents[0].facts, agent.facts.is_drivers
        member = Member(
            prefix=f"{agent.host.group}/{agent.host.name}:{{rank}}",
            restarts=restarts,
            hosts=len(agents),
            number=agents.index(agent),
            address=agent.facts.address,
            master_address=first.address,
            master_port=first.free_port,
        )
        logs = str(self._folder.logs(self._attempt.number)) if is_here else "{logs}"
        command = [
            "{python}", "-u", "-P", "-m", "headrace.launch.torchrun",
            "--parent", "{parent}", "--announce", "{announce}",
            "--member", member.to_json(), "--logs", logs,
            "--", *(self._argv if is_here else self._luggage.argv),
        ]  # fmt: skip
        return Program(
            command=command,
            folder=str(Path.cwd()) if is_here else None,
            environment=self._environment(agents)
            if is_here
            else self._environment_elsewhere(agent),
            is_whole=is_here,
            version=self._offloading.version if self._offloading is not None else 0,
            files=self._offloading.files_of(agent) if self._offloading is not None else {},
        )

    def _environment_elsewhere(self, agent: PlacedAgent) -> dict[str, str]:
        """Return the variables of ranks on another machine."""
        own = {**env.travelling_environment(), env.RUN_DIR.name: "{folder}"}
        own |= ray_variables(
            self._ray, self._luggage, {},
            is_here=False, drives=self._options.driver,
            devices_held=self._holds_devices([agent]),
        )  # fmt: skip
        if self._offloading is not None:
            own |= self._offloading.variables(is_here=False)
        return own

    def _environment(self, agents: Sequence[PlacedAgent]) -> dict[str, str]:
        """Return the variables of ranks on this machine, which are recorded together."""
        if self._recording is None:
            self._recording = Recording(self._folder, self._attempt, self._job.options)
        own = {**env.whole_environment(), env.RUN_DIR.name: str(self._folder.path)}
        recorded = self._recording.environment()
        own |= ray_variables(
            self._ray, self._luggage, recorded,
            is_here=True, drives=self._options.driver,
            devices_held=self._holds_devices(agents),
        )  # fmt: skip
        here = sum(agent.facts.is_drivers for agent in agents)
        ranks = self._job.ranks_here * here
        if ranks > 1:  # emulated hosts share the machine's cores
            cores = len(os.sched_getaffinity(0))
            own.setdefault(env.OMP_NUM_THREADS.name, str(max(1, cores // ranks)))
        for name, value in recorded.items():
            if value is None:
                own.pop(name, None)
            else:
                own[name] = value
        if self._options.driver:
            own[env.DRIVES.name] = "1"
        if self._offloading is not None:
            own |= self._offloading.variables(is_here=True)
        return own

    def _holds_devices(self, agents: Sequence[PlacedAgent]) -> bool:
        return not self._options.driver and any(agent.host.gpus for agent in agents)

    def _may_start_anew(self, ends: Sequence[HostEnd]) -> bool:
        """Tell what has ended the ranks; return whether they are started once more."""
        unheard = [end for end in ends if end.returncode is None]
        lost = self._gone([end.agent for end in unheard])
        if lost:
            self._lost |= {agent.host.node_id for agent in lost}
            names = ", ".join(agent.host.name for agent in lost)
            if not self._preemptions_left:
                tell(f"headrace: {names}: lost, and no preemption is left (--max-preemptions)\n")
                return False
            self._preemptions_left -= 1
            tell(f"headrace: {names}: lost; all ranks start anew once there are enough hosts\n")
            return True
        for end in unheard:
            tell(
                f"headrace: {end.host}: its agent failed, though the host lives; often memory ran "
                f"out: {end.reason}\n"
            )
        first = _first_failure(ends)
        if first is not None:
            tell(first.message)
        if not self._restarts_left:
            return False
        self._restarts_left -= 1
        tell(f"headrace: all ranks start anew; {self._restarts_left} restarts are left\n")
        return True

    def _gone(self, agents: Sequence[PlacedAgent]) -> list[PlacedAgent]:
        """Return those whose hosts are gone; the cluster takes its time to say so."""
        deadline_s = time.monotonic() + _GONE_S
        while agents:
            there = {host.node_id for host in living_hosts(self._ray)}
            gone = [agent for agent in agents if agent.host.node_id not in there]
            if gone or time.monotonic() > deadline_s:
                return gone
            time.sleep(_LOOK_EVERY_S)
        return []


def _first_failure(ends: Sequence[HostEnd]) -> HostEnd | None:
    failures = {end.failure: end for end in ends if end.failure is not None}
    return failures[first_failure(list(failures))] if failures else None


def _exit_code(ends: Sequence[HostEnd]) -> int:
    first = _first_failure(ends)
    if first is not None and first.failure is not None:
        return exit_code_of(first.failure.returncode)
    if any(end.returncode is None for end in ends):
        return LaunchError.exit_code
    codes = [end.returncode for end in ends if end.returncode]
    return exit_code_of(codes[0]) if codes else LaunchError.exit_code
