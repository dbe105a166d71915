"""The fleet of offload servers on the hosts of an instance group, run through Ray.

Hosts come and go while a job runs; each that is there has a server, and ranks find it in a file.
Nothing here waits: a host that hangs holds up nobody. What the group lacks (hosts that are not
there, or that other jobs keep busy) is printed.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from headrace.cluster.agent import AgentReport, HostAgent, HostFacts, HostProgram
from headrace.cluster.ray_driver import RayHost, living_hosts
from headrace.cluster.same_host import HostMarker
from headrace.offload.hosts_file import AuxiliaryHost, HostsFile
from headrace.platforms.instance_groups import GROUP_LABEL, GroupSpec

_PERSISTENCE_S = 15.0  # hosts come and go as a job starts


class PersistentNotices:
    """Tells each line once it has been true for a while, and again if it was not meanwhile.

    Args:
        tell: Takes the lines.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._since_s: dict[str, float] = {}
        self._told: set[str] = set()

    def are(self, lines: Sequence[str], now_s: float) -> None:
        """Take the lines that are true now; to be called often."""
        self._since_s = {line: self._since_s.get(line, now_s) for line in lines}
        self._told &= self._since_s.keys()
        for line, since_s in self._since_s.items():
            if now_s - since_s >= _PERSISTENCE_S and line not in self._told:
                self._told.add(line)
                self._tell(line)


def group_shortages(
    name: str, declared: GroupSpec | None, training: str, hosts: Sequence[RayHost],
    busy: Collection[RayHost],
) -> list[str]:  # fmt: skip
    """Return what there is to tell of an auxiliary group, a line each.

    Args:
        name: The group's.
        declared: What the command line says of it, where it does.
        training: The group that trains.
        hosts: Those of the cluster.
        busy: Those of the group whose cores others have.
    """
    there = sum(host.group == name for host in hosts)
    lines = []
    if not there:
        meant = _suggest_group(name, training, hosts)
        lines.append(
            f"headrace: group {name} has no host, and training goes on without; the cluster has "
            f"{_count_groups(hosts)}.{meant} Hosts that come later are used: `ray start --labels "
            f"{GROUP_LABEL}={name}`\n"
        )
    elif declared is not None and there < declared.hosts:
        lines.append(
            f"headrace: group {name} has {there} of {declared.hosts} hosts; training goes on "
            "without the others, and they are used once they come\n"
        )
    if busy:
        told = ", ".join(sorted(host.name for host in busy))
        lines.append(
            f"headrace: group {name}: busy with other jobs: {told}; training goes on without, and "
            "a host makes batches once all of its cores are free\n"
        )
    return lines


def _suggest_group(name: str, training: str, hosts: Sequence[RayHost]) -> str:
    """Return whether another group may be meant, in words."""
    groups = {host.group.casefold(): host.group for host in hosts if host.group is not None}
    groups.pop(training.casefold(), None)
    near = get_close_matches(name.casefold(), groups, n=1)
    return f" Did you mean --offload {groups[near[0]]}?" if near else ""


def _count_groups(hosts: Sequence[RayHost]) -> str:
    counted = Counter(host.group for host in hosts)
    alone = counted.pop(None, 0)
    told = [f"{count} of group {group}" for group, count in sorted(counted.items())]
    return ", ".join([*told, *([f"{alone} of no group"] if alone else [])])


_POLL_S = 1.0
_RESTART_S = 5.0  # before a station that ended is started anew, and twice as long each time
_MAX_RESTART_S = 120.0
_PLACEMENT_S = 5.0  # by Ray, where the cores are free
_STARTUP_S = 60.0  # a station that takes longer is not waited for
_MAX_CONCURRENT_CALLS = 4
_RELEASE_S = 5.0
_KEY = "key"
SERVER_COMMAND = (
    "{python}", "-u", "-P", "-m", "headrace.offload.server",
    "--parent", "{parent}", "--announce", "{announce}", "--key", f"{{{_KEY}}}",
)  # fmt: skip

OutputCallback = Callable[[str, bytes], None]
ProgramFactory = Callable[[RayHost, HostFacts, tuple[str, ...], dict[str, bytes]], HostProgram]


@dataclass(slots=True, kw_only=True)
class _FleetServer:
    host: RayHost
    actor: Any
    placed_s: float
    looking: Any  # reference of the agent's first look; None once it has looked
    visit: Any = None  # of a task there that takes no cores, where the agent takes its time
    news: Any = None
    port: int | None = None
    address: str = ""
    ended_s: float | None = None
    is_unfit: bool = False  # what the job needs could not be installed


class OffloadFleet:
    """The stations of one job.

    Args:
        ray: Connected.
        group: The instance group's name.
        mark: Left by this process.
        declared: What the command line says of the group, where it does.
        training: The group that trains.
        program_of: Returns what runs a command on a host, by the host, its facts, the command
            and its files.
        hear: Takes what is announced on a host, by its name, before its station is; returns
            whether the host can be one.
        show: Takes what stations say.
        tell: Takes lines for the user.
        used: Whether hosts have stations at once; else from `use` on.

    Attributes:
        cores: The cores of the hosts that are there, all together.
        version: Another number whenever other hosts are there.
    """

    def __init__(
        self,
        ray: ModuleType,
        group: str,
        mark: HostMarker,
        program_of: ProgramFactory,
        *,
        hear: Callable[[str, dict[str, Any]], bool],
        show: OutputCallback,
        tell: Callable[[str], None],
        declared: GroupSpec | None,
        training: str,
        used: bool,
    ) -> None:
        self._ray = ray
        self._group = group
        self._declared = declared
        self._training = training
        self._mark = mark
        self._program_of = program_of
        self._hear = hear
        self._show = show
        self._tell = tell
        self._lacks = PersistentNotices(tell)
        self._is_used = used
        self._key = secrets.token_bytes(32)
        self._stations: dict[str, _FleetServer] = {}  # by Ray's number of the host
        self._again_s: dict[str, float] = {}  # when a host that was lost is tried, likewise
        self._up_s: dict[str, float] = {}  # when its station came up, likewise
        self._losses: dict[str, int] = {}  # of a host in a row, likewise
        self._unfit: set[str] = set()  # hosts that are asked no more, likewise
        self._look_s = 0.0
        self.cores = self._coming = 0
        self.version = 0
        self.tend()
        # Whether hosts help at all may not be settled yet, but the sharing of a dataset has to be.
        self._partitions = partitions_of_job(declared, self._cores_per_host()) if used else 0

    def file_for(self, folder: str) -> bytes:
        """Return the hosts file of ranks whose job folder is `folder`."""
        hosts = tuple(
            AuxiliaryHost(name=each.host.name, address=each.address, port=each.port)
            for each in self._stations.values()
            if each.port is not None
        )
        return HostsFile(
            key=self._key.hex(), folder=folder, cores=self.cores, strands=self._partitions,
            coming=self._coming, hosts=hosts,
        ).to_bytes()  # fmt: skip

    def _count_expected(self, now_s: float) -> None:
        """Count the stations that ranks may expect at any moment."""
        coming = sum(
            station.port is None
            and station.host.node_id not in self._losses
            and now_s - station.placed_s < _STARTUP_S
            for station in self._stations.values()
        )
        if coming != self._coming:
            self._coming = coming
            self.version += 1

    def _cores_per_host(self) -> list[int]:
        return [max(station.host.cpus, 1) for station in self._stations.values()]

    def tend(self) -> None:
        """Look after hosts and stations, a moment at most; to be called often."""
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + _POLL_S
            self._update_fleet(now_s)
        for station in list(self._stations.values()):
            try:
                self._attend(station, now_s)
            except self._ray.exceptions.ActorUnavailableError as error:
                if station.looking is not None:  # nothing runs there yet
                    self._lose(station, now_s, str(error))
                else:
                    station.news = station.actor.news.remote()
            except (self._ray.exceptions.RayError, ConnectionError) as error:
                self._lose(station, now_s, str(error))
        self._count_expected(now_s)

    def use(self) -> None:
        """Have the hosts make batches from now on."""
        self._is_used = True

    def close(self) -> None:
        """End all stations."""
        actors = [station.actor for station in self._stations.values()]
        self._stations.clear()
        with suppress(Exception):  # hosts, or the whole cluster, may be gone
            leaving = [actor.leave.remote() for actor in actors]
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=_RELEASE_S)
            for actor in actors:
                self._ray.kill(actor)

    def _update_fleet(self, now_s: float) -> None:
        everywhere = living_hosts(self._ray)
        busy = [one.host for one in self._stations.values() if self._is_busy_elsewhere(one, now_s)]
        told = group_shortages(self._group, self._declared, self._training, everywhere, busy)
        self._lacks.are(told, now_s)
        hosts = {host.node_id: host for host in everywhere if host.group == self._group}
        self.cores = sum(max(host.cpus, 1) for host in hosts.values())
        if not self._is_used:
            return
        for node_id in self._stations.keys() - hosts.keys():
            self._lose(self._stations[node_id], now_s, "the host is gone")
        for node_id, host in hosts.items():
            is_due = now_s >= self._again_s.get(node_id, 0.0) and node_id not in self._unfit
            if is_due and node_id not in self._stations:
                self._stations[node_id] = self._placed(host)

    def _is_busy_elsewhere(self, station: _FleetServer, now_s: float) -> bool:
        """Tell whether the host would start an agent, but has not its cores to give out."""
        if station.looking is None or now_s - station.placed_s < _PLACEMENT_S:
            return False
        if station.visit is None:  # it may only be slow: the job's folder travels first, say
            where = _node_affinity(station.host)
            task = self._ray.remote(_probe_host).options(num_cpus=0, scheduling_strategy=where)
            station.visit = task.remote()
        return self._is_ready(station.visit)

    def _placed(self, host: RayHost) -> _FleetServer:
        actor = (
            self._ray.remote(HostAgent)
            .options(
                num_cpus=max(host.cpus, 1),  # all of them: whoever else wants some waits
                scheduling_strategy=_node_affinity(host),
                max_concurrency=_MAX_CONCURRENT_CALLS,
            )
            .remote()
        )
        looking = actor.look.remote(self._mark, host.address)
        return _FleetServer(host=host, actor=actor, placed_s=time.monotonic(), looking=looking)

    def _attend(self, station: _FleetServer, now_s: float) -> None:
        if station.looking is not None:
            if self._is_ready(station.looking):
                self._start(station, self._ray.get(station.looking))
        elif station.ended_s is not None:
            self._lose(station, now_s, "")  # its agent starts one program, once
        elif self._is_ready(station.news):
            self._take_in(station, self._ray.get(station.news), now_s)

    def _is_ready(self, reference: Any) -> bool:
        ready, _ = self._ray.wait([reference], timeout=0)
        return bool(ready)

    def _start(self, station: _FleetServer, facts: HostFacts) -> None:
        cores = str(max(station.host.cpus, 1))
        command = (*SERVER_COMMAND, "--address", facts.address, "--cores", cores)
        station.looking, station.address = None, facts.address
        program = self._program_of(station.host, facts, command, {_KEY: self._key})
        # An error of `start` comes with the news, which wait for it.
        station.news = station.actor.news.remote(station.actor.start.remote(program))

    def _take_in(self, station: _FleetServer, news: AgentReport, now_s: float) -> None:
        prefix = f"[{station.host.group}/{station.host.name}] ".encode()
        for source, text in news.output:
            self._show(source, prefix + text)
        for announced in news.announced:
            if "port" in announced:
                self._is_up(station, int(announced["port"]), now_s)
            elif not self._hear(station.host.name, announced):
                station.is_unfit = True
        if news.returncode is None:
            station.news = station.actor.news.remote()
            return
        if station.is_unfit:
            self._exclude_server(station)
            return
        self._tell(
            f"headrace: {station.host.name}: what makes batches there ended with "
            f"{news.returncode}; it is started anew\n"
        )
        station.ended_s = now_s
        self._clear_port(station)

    def _is_up(self, station: _FleetServer, port: int, now_s: float) -> None:
        station.port = port
        self.version += 1
        cores = max(station.host.cpus, 1)
        self._tell(f"headrace: {station.host.name} makes batches, on {cores} cores\n")
        self._up_s[station.host.node_id] = now_s

    def _exclude_server(self, station: _FleetServer) -> None:
        self._tell(f"headrace: auxiliary host {station.host.name} is left out of this job\n")
        self._unfit.add(station.host.node_id)
        del self._stations[station.host.node_id]
        self._release(station)

    def _lose(self, station: _FleetServer, now_s: float, why: str) -> None:
        node_id = station.host.node_id
        if why:
            self._tell(
                f"headrace: auxiliary host {station.host.name} is lost: {_first_reason_line(why)}\n"
            )
        self._stations.pop(node_id, None)
        up_s = self._up_s.pop(node_id, None)
        was_well = up_s is not None and now_s - up_s > _MAX_RESTART_S
        losses = 1 if was_well else self._losses.get(node_id, 0) + 1
        self._losses[node_id] = losses
        self._again_s[node_id] = now_s + min(_MAX_RESTART_S, _RESTART_S * 2 ** (losses - 1))
        self._clear_port(station)
        self._release(station)

    def _release(self, station: _FleetServer) -> None:
        with suppress(Exception):  # it is gone with its host
            station.actor.leave.remote()
            self._ray.kill(station.actor)

    def _clear_port(self, station: _FleetServer) -> None:
        if station.port is not None:
            station.port = None
            self.version += 1


def partitions_of_job(declared: GroupSpec | None, there: Sequence[int]) -> int:
    """Return among how many workers on auxiliary hosts iterable datasets are shared: their cores.

    Args:
        declared: What the command line says of the group, which another start says as well.
        there: The cores of each host that is there as the job begins.
    """
    if declared is None:
        return sum(there)
    return declared.hosts * (declared.cpus or max(there, default=0))


def _node_affinity(host: RayHost) -> Any:
    """Return Ray's word for that host alone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(host.node_id, soft=False)


def _probe_host() -> None:
    """Be on a host: whoever comes back has found that it starts what takes no cores."""


def _first_reason_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else "nobody knows why"
