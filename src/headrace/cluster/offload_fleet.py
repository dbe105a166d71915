"""The fleet of offload servers on the hosts of an instance group, run through Ray.

Hosts come and go while a job runs. Each has a server, whose address ranks read from a hosts file.
Nothing here blocks, so that a host that hangs delays no other. What the group lacks (hosts that are
missing, or busy with other jobs) is printed.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headrace.cluster.agent import AgentReport, HostFacts, HostProgram
from headrace.cluster.host_identity import HostMarker
from headrace.cluster.ray_cluster import (
    RayHost,
    end_agents,
    end_agents_in_background,
    living_hosts,
    node_affinity,
    start_agent,
)
from headrace.core.console import print_status
from headrace.offload.connection import AuxiliaryHost, HostsFile
from headrace.platforms.instance_groups import GROUP_LABEL, GroupSpec

_PERSISTENCE_S = 15.0  # hosts come and go as a job starts


class PersistentNotices:
    """Status lines that are printed once they have held for 15 s, and again after they did not."""

    def __init__(self, print_line: Callable[[str], None] = print_status) -> None:
        self._print_line = print_line
        self._since_s: dict[str, float] = {}
        self._printed: set[str] = set()

    def update(self, lines: Sequence[str], now_s: float) -> None:
        """Set the lines that hold now; to be called often."""
        self._since_s = {line: self._since_s.get(line, now_s) for line in lines}
        self._printed &= self._since_s.keys()
        for line, since_s in self._since_s.items():
            if now_s - since_s >= _PERSISTENCE_S and line not in self._printed:
                self._printed.add(line)
                self._print_line(line)


def group_shortages(
    name: str, declared: GroupSpec | None, training: str, hosts: Sequence[RayHost],
    busy: Collection[RayHost],
) -> list[str]:  # fmt: skip
    """Return status lines about what an auxiliary group lacks.

    `declared` is the group as declared on the command line, if it is; `busy` are the group's hosts
    whose cores other jobs have.
    """
    present = sum(host.group == name for host in hosts)
    lines = []
    if not present:
        hint = _suggest_group(name, training, hosts)
        lines.append(
            f"group {name} has no host, and training goes on without; the cluster has "
            f"{_count_groups(hosts)}.{hint} Hosts that come later are used: `ray start --labels "
            f"{GROUP_LABEL}={name}`"
        )
    elif declared is not None and present < declared.hosts:
        lines.append(
            f"group {name} has {present} of {declared.hosts} hosts; training goes on "
            "without the others, and they are used once they come"
        )
    if busy:
        names = ", ".join(sorted(host.name for host in busy))
        lines.append(
            f"group {name}: busy with other jobs: {names}; training goes on without, and "
            "a host makes batches once all of its cores are free"
        )
    return lines


def _suggest_group(name: str, training: str, hosts: Sequence[RayHost]) -> str:
    """Return the hint at a group of a similar name; "" without one."""
    groups = {host.group.casefold(): host.group for host in hosts if host.group is not None}
    groups.pop(training.casefold(), None)
    near = get_close_matches(name.casefold(), groups, n=1)
    return f" Did you mean --offload {groups[near[0]]}?" if near else ""


def _count_groups(hosts: Sequence[RayHost]) -> str:
    counted = Counter(host.group for host in hosts)
    alone = counted.pop(None, 0)
    parts = [f"{count} of group {group}" for group, count in sorted(counted.items())]
    return ", ".join([*parts, *([f"{alone} of no group"] if alone else [])])


_POLL_S = 1.0
_RESTART_S = 5.0  # before a server is restarted, doubled after each loss in a row
_MAX_RESTART_S = 120.0
_PLACEMENT_S = 5.0  # Ray takes less to place an agent whose cores are free
_STARTUP_S = 60.0  # ranks do not expect a server that takes longer
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
    inspection: Any  # reference of the agent's `inspect`; None once it has returned
    probe: Any = None  # of a task without cores there, if the agent is not placed in time
    report: Any = None
    port: int | None = None
    address: str = ""
    ended_s: float | None = None
    is_unfit: bool = False  # the job's requirements could not be installed


@dataclass(kw_only=True)
class OffloadFleet:
    """The offload servers of one job."""

    ray: Any  # the connected module
    group: str
    marker: HostMarker  # the driver's
    program_of: ProgramFactory
    # Takes a host's name and what its requirements installer announces; returns whether the host
    # can be used.
    on_message: Callable[[str, dict[str, Any]], bool]
    show: OutputCallback  # takes the servers' output
    declared: GroupSpec | None  # the group as declared on the command line
    training: str  # name of the group that trains
    is_used: bool  # servers are started at once; else as soon as it is set

    def __post_init__(self) -> None:
        self._shortages = PersistentNotices()
        self._key = secrets.token_bytes(32)
        self._servers: dict[str, _FleetServer] = {}  # by Ray's node id
        self._retry_s: dict[str, float] = {}  # node id -> when a lost host is tried again
        self._up_since_s: dict[str, float] = {}  # node id -> since when its server is up
        self._losses: dict[str, int] = {}  # node id -> losses in a row
        self._excluded: set[str] = set()  # node ids
        self._next_poll_s = 0.0
        self.cores = 0  # of the group's hosts, all together
        self._hosts: tuple[AuxiliaryHost, ...] = ()  # those whose servers are up
        self._expected = 0  # servers that are starting up, which ranks may wait for
        self.version = 0  # changes whenever the content of the hosts file does
        self.tend()
        # Fixed now, though whether hosts are used at all may be decided later.
        cores = [_usable_cores(server.host) for server in self._servers.values()]
        self._partitions = partitions_of_job(self.declared, cores) if self.is_used else 0

    def file_for(self, folder: str) -> bytes:
        """Return the hosts file for ranks whose job folder is `folder`."""
        return HostsFile(
            key=self._key.hex(), folder=folder, cores=self.cores, partitions=self._partitions,
            coming=self._expected, hosts=self._hosts,
        ).to_bytes()  # fmt: skip

    def _update_hosts_file(self, now_s: float) -> None:
        hosts = tuple(
            AuxiliaryHost(name=server.host.name, address=server.address, port=server.port)
            for server in self._servers.values()
            if server.port is not None
        )
        expected = sum(
            server.port is None
            and server.host.node_id not in self._losses
            and now_s - server.placed_s < _STARTUP_S
            for server in self._servers.values()
        )
        if (hosts, expected) != (self._hosts, self._expected):
            self._hosts, self._expected = hosts, expected
            self.version += 1

    def tend(self) -> None:
        """Update hosts and servers without blocking; to be called often."""
        now_s = time.monotonic()
        if now_s >= self._next_poll_s:
            self._next_poll_s = now_s + _POLL_S
            self._update_fleet(now_s)
        for server in list(self._servers.values()):
            try:
                self._poll_server(server, now_s)
            except self.ray.exceptions.ActorUnavailableError as error:
                if server.inspection is not None:  # nothing runs there yet
                    self._lose(server, now_s, str(error))
                else:
                    server.report = server.actor.report.remote()
            except (self.ray.exceptions.RayError, ConnectionError) as error:
                self._lose(server, now_s, str(error))
        self._update_hosts_file(now_s)

    def close(self) -> None:
        """End all servers."""
        actors = [server.actor for server in self._servers.values()]
        self._servers.clear()
        end_agents(self.ray, actors)

    def _update_fleet(self, now_s: float) -> None:
        all_hosts = living_hosts(self.ray)
        busy = [
            server.host
            for server in self._servers.values()
            if self._is_busy_elsewhere(server, now_s)
        ]
        lines = group_shortages(self.group, self.declared, self.training, all_hosts, busy)
        self._shortages.update(lines, now_s)
        hosts = {host.node_id: host for host in all_hosts if host.group == self.group}
        self.cores = sum(map(_usable_cores, hosts.values()))
        if not self.is_used:
            return
        for node_id in self._servers.keys() - hosts.keys():
            self._lose(self._servers[node_id], now_s, "the host is gone")
        for node_id, host in hosts.items():
            is_due = now_s >= self._retry_s.get(node_id, 0.0) and node_id not in self._excluded
            if is_due and node_id not in self._servers:
                self._servers[node_id] = self._place_server(host)

    def _is_busy_elsewhere(self, server: _FleetServer, now_s: float) -> bool:
        """Return whether Ray can start tasks on the host, but its cores are taken."""
        if server.inspection is None or now_s - server.placed_s < _PLACEMENT_S:
            return False
        if server.probe is None:  # it may be slow only, as the job's folder is copied first
            strategy = node_affinity(server.host)
            task = self.ray.remote(_probe_host).options(num_cpus=0, scheduling_strategy=strategy)
            server.probe = task.remote()
        return self._is_ready(server.probe)

    def _place_server(self, host: RayHost) -> _FleetServer:
        # All cores, so that other jobs wait.
        actor = start_agent(self.ray, node_affinity(host), cpus=_usable_cores(host))
        inspection = actor.inspect.remote(self.marker, host.address)
        return _FleetServer(
            host=host, actor=actor, placed_s=time.monotonic(), inspection=inspection
        )

    def _poll_server(self, server: _FleetServer, now_s: float) -> None:
        if server.inspection is not None:
            if self._is_ready(server.inspection):
                self._start(server, self.ray.get(server.inspection))
        elif server.ended_s is not None:
            self._lose(server, now_s, "")  # an agent starts one server; a restart takes a new agent
        elif self._is_ready(server.report):
            self._handle_report(server, self.ray.get(server.report), now_s)

    def _is_ready(self, reference: Any) -> bool:
        ready, _ = self.ray.wait([reference], timeout=0)
        return bool(ready)

    def _start(self, server: _FleetServer, facts: HostFacts) -> None:
        cores = str(_usable_cores(server.host))
        command = (*SERVER_COMMAND, "--address", facts.address, "--cores", cores)
        server.inspection, server.address = None, facts.address
        program = self.program_of(server.host, facts, command, {_KEY: self._key})
        # `report` waits for `start`, and raises its error.
        server.report = server.actor.report.remote(server.actor.start.remote(program))

    def _handle_report(self, server: _FleetServer, report: AgentReport, now_s: float) -> None:
        prefix = f"[{server.host.group}/{server.host.name}] ".encode()
        for source, text in report.output:
            self.show(source, prefix + text)
        for announced in report.announced:
            if "port" in announced:
                server.port = int(announced["port"])
                self._up_since_s[server.host.node_id] = now_s
                cores = _usable_cores(server.host)
                print_status(f"{server.host.name} makes batches, on {cores} cores")
            elif not self.on_message(server.host.name, announced):
                server.is_unfit = True
        if report.returncode is None:
            server.report = server.actor.report.remote()
            return
        if server.is_unfit:
            print_status(f"auxiliary host {server.host.name} is left out of this job")
            self._excluded.add(server.host.node_id)
            del self._servers[server.host.node_id]
            self._release(server)
            return
        print_status(
            f"{server.host.name}: what makes batches there ended with "
            f"{report.returncode}; it is started anew"
        )
        server.ended_s, server.port = now_s, None

    def _lose(self, server: _FleetServer, now_s: float, reason: str) -> None:
        node_id = server.host.node_id
        if reason:
            first_line = next(iter(reason.strip().splitlines()), "nobody knows why")
            print_status(f"auxiliary host {server.host.name} is lost: {first_line}")
        self._servers.pop(node_id, None)
        up_s = self._up_since_s.pop(node_id, None)
        was_stable = up_s is not None and now_s - up_s > _MAX_RESTART_S
        losses = 1 if was_stable else self._losses.get(node_id, 0) + 1
        self._losses[node_id] = losses
        self._retry_s[node_id] = now_s + min(_MAX_RESTART_S, _RESTART_S * 2 ** (losses - 1))
        self._release(server)

    def _release(self, server: _FleetServer) -> None:
        end_agents_in_background(self.ray, [server.actor])


def partitions_of_job(declared: GroupSpec | None, cores: Sequence[int]) -> int:
    """Return how many partitions of iterable datasets go to auxiliary hosts: one a core.

    A group that the command line declares has the same number after a restart; else it depends on
    the `cores` of each host that is present as the job begins.
    """
    if declared is None:
        return sum(cores)
    return declared.hosts * (declared.cpus or max(cores, default=0))


def _usable_cores(host: RayHost) -> int:
    return max(host.cpus, 1)


def _probe_host() -> None:
    """Do nothing: that the task runs shows that the host starts tasks that need no cores."""
