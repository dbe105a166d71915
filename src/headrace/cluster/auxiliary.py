"""Stations on the hosts of an instance group: they make batches for ranks elsewhere.

Hosts come and go while a job runs; each that is there has a station, and ranks hear of it by a
file. Nothing here waits: a host that hangs holds up nobody.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from headrace.cluster.agent import HostAgent, HostFacts, News, Program
from headrace.cluster.connection import Host, living_hosts
from headrace.cluster.lacking import Standing, lacks
from headrace.cluster.machine import Mark
from headrace.cluster.offload.hosts_file import AuxiliaryHost, HostsFile
from headrace.contracts.groups import Group

_LOOK_EVERY_S = 1.0
_AGAIN_S = 5.0  # before a station that ended is started anew, and twice as long each time
_LONGEST_AGAIN_S = 120.0
_PLACED_WITHIN_S = 5.0  # by Ray, where the cores are free
_COMES_WITHIN_S = 60.0  # a station that takes longer is not waited for
_CALLS_AT_ONCE = 4
_LEAVE_S = 5.0
_KEY = "key"
STATION = (
    "{python}", "-u", "-P", "-m", "headrace.cluster.offload.station",
    "--parent", "{parent}", "--announce", "{announce}", "--key", f"{{{_KEY}}}",
)  # fmt: skip

Show = Callable[[str, bytes], None]
ProgramOf = Callable[[Host, HostFacts, tuple[str, ...], dict[str, bytes]], Program]


@dataclass(slots=True, kw_only=True)
class _Station:
    host: Host
    actor: Any
    placed_s: float
    looking: Any  # reference of the agent's first look; None once it has looked
    visit: Any = None  # of a task there that takes no cores, where the agent takes its time
    news: Any = None
    port: int | None = None
    address: str = ""
    ended_s: float | None = None
    is_unfit: bool = False  # what the job needs could not be installed


class Auxiliaries:
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
        self, ray: ModuleType, group: str, mark: Mark, program_of: ProgramOf, *,
        hear: Callable[[str, dict[str, Any]], bool], show: Show, tell: Callable[[str], None],
        declared: Group | None, training: str, used: bool,
    ) -> None:  # fmt: skip
        self._ray = ray
        self._group = group
        self._declared = declared
        self._training = training
        self._mark = mark
        self._program_of = program_of
        self._hear = hear
        self._show = show
        self._tell = tell
        self._lacks = Standing(tell)
        self._is_used = used
        self._key = secrets.token_bytes(32)
        self._stations: dict[str, _Station] = {}  # by Ray's number of the host
        self._again_s: dict[str, float] = {}  # when a host that was lost is tried, likewise
        self._up_s: dict[str, float] = {}  # when its station came up, likewise
        self._losses: dict[str, int] = {}  # of a host in a row, likewise
        self._unfit: set[str] = set()  # hosts that are asked no more, likewise
        self._look_s = 0.0
        self.cores = self._coming = 0
        self.version = 0
        self.tend()
        # Whether hosts help at all may not be settled yet, but the sharing of a dataset has to be.
        self._strands = strands_of_job(declared, self._host_cores()) if used else 0

    def file_for(self, folder: str) -> bytes:
        """Return the hosts file of ranks whose job folder is `folder`."""
        hosts = tuple(
            AuxiliaryHost(name=each.host.name, address=each.address, port=each.port)
            for each in self._stations.values()
            if each.port is not None
        )
        return HostsFile(
            key=self._key.hex(), folder=folder, cores=self.cores, strands=self._strands,
            coming=self._coming, hosts=hosts,
        ).to_bytes()  # fmt: skip

    def _count_coming(self, now_s: float) -> None:
        """Count the stations that ranks may expect at any moment."""
        coming = sum(
            station.port is None
            and station.host.node_id not in self._losses
            and now_s - station.placed_s < _COMES_WITHIN_S
            for station in self._stations.values()
        )
        if coming != self._coming:
            self._coming = coming
            self.version += 1

    def _host_cores(self) -> list[int]:
        return [max(station.host.cpus, 1) for station in self._stations.values()]

    def tend(self) -> None:
        """Look after hosts and stations, a moment at most; to be called often."""
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_EVERY_S
            self._look_at_hosts(now_s)
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
        self._count_coming(now_s)

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
                self._ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)
            for actor in actors:
                self._ray.kill(actor)

    def _look_at_hosts(self, now_s: float) -> None:
        everywhere = living_hosts(self._ray)
        busy = [one.host for one in self._stations.values() if self._is_kept_waiting(one, now_s)]
        told = lacks(self._group, self._declared, self._training, everywhere, busy)
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

    def _is_kept_waiting(self, station: _Station, now_s: float) -> bool:
        """Tell whether the host would start an agent, but has not its cores to give out."""
        if station.looking is None or now_s - station.placed_s < _PLACED_WITHIN_S:
            return False
        if station.visit is None:  # it may only be slow: the job's folder travels first, say
            where = _on(station.host)
            task = self._ray.remote(_visit).options(num_cpus=0, scheduling_strategy=where)
            station.visit = task.remote()
        return self._is_ready(station.visit)

    def _placed(self, host: Host) -> _Station:
        actor = (
            self._ray.remote(HostAgent)
            .options(
                num_cpus=max(host.cpus, 1),  # all of them: whoever else wants some waits
                scheduling_strategy=_on(host),
                max_concurrency=_CALLS_AT_ONCE,
            )
            .remote()
        )
        looking = actor.look.remote(self._mark, host.address)
        return _Station(host=host, actor=actor, placed_s=time.monotonic(), looking=looking)

    def _attend(self, station: _Station, now_s: float) -> None:
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

    def _start(self, station: _Station, facts: HostFacts) -> None:
        cores = str(max(station.host.cpus, 1))
        command = (*STATION, "--address", facts.address, "--cores", cores)
        station.looking, station.address = None, facts.address
        program = self._program_of(station.host, facts, command, {_KEY: self._key})
        # An error of `start` comes with the news, which wait for it.
        station.news = station.actor.news.remote(station.actor.start.remote(program))

    def _take_in(self, station: _Station, news: News, now_s: float) -> None:
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
            self._leave_out(station)
            return
        self._tell(
            f"headrace: {station.host.name}: what makes batches there ended with "
            f"{news.returncode}; it is started anew\n"
        )
        station.ended_s = now_s
        self._forget_port(station)

    def _is_up(self, station: _Station, port: int, now_s: float) -> None:
        station.port = port
        self.version += 1
        cores = max(station.host.cpus, 1)
        self._tell(f"headrace: {station.host.name} makes batches, on {cores} cores\n")
        self._up_s[station.host.node_id] = now_s

    def _leave_out(self, station: _Station) -> None:
        self._tell(f"headrace: auxiliary host {station.host.name} is left out of this job\n")
        self._unfit.add(station.host.node_id)
        del self._stations[station.host.node_id]
        self._release(station)

    def _lose(self, station: _Station, now_s: float, why: str) -> None:
        node_id = station.host.node_id
        if why:
            self._tell(f"headrace: auxiliary host {station.host.name} is lost: {_short(why)}\n")
        self._stations.pop(node_id, None)
        up_s = self._up_s.pop(node_id, None)
        was_well = up_s is not None and now_s - up_s > _LONGEST_AGAIN_S
        losses = 1 if was_well else self._losses.get(node_id, 0) + 1
        self._losses[node_id] = losses
        self._again_s[node_id] = now_s + min(_LONGEST_AGAIN_S, _AGAIN_S * 2 ** (losses - 1))
        self._forget_port(station)
        self._release(station)

    def _release(self, station: _Station) -> None:
        with suppress(Exception):  # it is gone with its host
            station.actor.leave.remote()
            self._ray.kill(station.actor)

    def _forget_port(self, station: _Station) -> None:
        if station.port is not None:
            station.port = None
            self.version += 1


def strands_of_job(declared: Group | None, there: Sequence[int]) -> int:
    """Return among how many workers on auxiliary hosts iterable datasets are shared: their cores.

    Args:
        declared: What the command line says of the group, which another start says as well.
        there: The cores of each host that is there as the job begins.
    """
    if declared is None:
        return sum(there)
    return declared.hosts * (declared.cpus or max(there, default=0))


def _on(host: Host) -> Any:
    """Return Ray's word for that host alone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(host.node_id, soft=False)


def _visit() -> None:
    """Be on a host: whoever comes back has found that it starts what takes no cores."""


def _short(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else "nobody knows why"
