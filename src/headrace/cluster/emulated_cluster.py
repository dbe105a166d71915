"""Emulated hosts on one machine: a Ray node for each host, or without Ray an agent in threads.

They let a job with instance groups be tried on a laptop. The hosts share the machine's cores,
memory and network. The agents in threads have the interface of Ray's actors, so that a rank group
runs the same with Ray and without.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from headrace.cluster.agent import HostAgent
from headrace.cluster.host_identity import free_port
from headrace.cluster.ray_node import (
    FreeMemory,
    RayNode,
    RayNodeSpec,
    emulated_store_bytes,
    head_flags,
    make_node_folder,
    new_token,
    write_token_file,
)
from headrace.core import env
from headrace.platforms.instance_groups import GroupSpec

_MAX_CONCURRENT_CALLS = 4  # as for Ray's actors: `stop` while `report` waits


class _NoRayError(Exception):
    """Stands for Ray's errors; never raised, as an agent here lives as long as its caller."""


class ThreadCalls:
    """Ray's `wait` and `get` for calls of agents in this process."""

    exceptions = SimpleNamespace(RayError=_NoRayError, ActorUnavailableError=_NoRayError)

    def wait(
        self, calls: Sequence[Future[Any]], *, num_returns: int, timeout: float
    ) -> tuple[list[Future[Any]], list[Future[Any]]]:
        """Wait for calls as `ray.wait` does; return those that have returned, and the others."""
        when = "FIRST_COMPLETED" if num_returns < len(calls) else "ALL_COMPLETED"
        wait(calls, timeout=timeout, return_when=when)
        done = [call for call in calls if call.done()]
        return done, [call for call in calls if call not in done]

    def get(self, call: Future[Any]) -> Any:
        """Return what a call returned, or raise what it raised."""
        return call.result()


class ThreadActor:
    """An agent in this process; `actor.method.remote(...)` calls a method of it in a thread.

    `variables` are for its programs, such as the devices of the emulated host.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._agent = HostAgent(variables)
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT_CALLS, thread_name_prefix="agent")

    def __getattr__(self, method: str) -> SimpleNamespace:
        """Return the method's `remote` form."""
        call = getattr(self._agent, method)
        return SimpleNamespace(remote=partial(self._threads.submit, _call_with_results, call))

    def close(self) -> None:
        """Kill its program, and remove its files."""
        with suppress(ProcessLookupError):
            self._agent.stop(signal.SIGKILL)
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._agent.remove_folder()


def _call_with_results(call: Callable[..., Any], *arguments: Any) -> Any:
    # As in Ray, an argument may be the result of another call.
    return call(*(each.result() if isinstance(each, Future) else each for each in arguments))


_ADDRESS = "127.0.0.1"
_START_S = 120.0
_PORTS = ("dashboard-agent-listen-port", "min-worker-port", "max-worker-port")


class EmulatedCluster:
    """Ray on this machine, one node for each host of each group; raises LaunchError.

    The first host of the first group is the head; that group's hosts share the named devices.
    """

    def __init__(self, groups: Sequence[GroupSpec], *, devices: Sequence[str]) -> None:
        specs = _node_specs(groups, len(devices))
        self._devices = list(devices)  # not given to a host yet
        self._folder = make_node_folder()
        self._variables = write_token_file(self._folder / "token", new_token())
        self._previous_environment = env.values_of(self._variables)
        env.change(self._variables)  # as this process connects, too
        self.address = f"{_ADDRESS}:{free_port(_ADDRESS)}"  # the head's
        self.nodes: dict[str, RayNode] = {}  # by host name, such as `cpu-1`
        deadline_s = time.monotonic() + _START_S
        try:
            self._start(specs[0], self._head_flags())
            self.nodes[specs[0].name].wait_until_up(deadline_s)
            for spec in specs[1:]:
                self.add(spec)
            for node in self.nodes.values():
                node.wait_until_up(deadline_s)
        except BaseException:
            self.close()
            raise

    def add(self, spec: RayNodeSpec) -> RayNode:
        """Start one more host, and return it before it is up."""
        return self._start(spec, [f"--address={self.address}"])

    def close(self) -> None:
        """End all hosts; the head last, as the others deregister with it."""
        nodes = list(self.nodes.values())
        for part in (nodes[1:], nodes[:1]):
            for node in part:
                node.request_end()
            for node in part:
                node.end()
        shutil.rmtree(self._folder, ignore_errors=True)
        env.change(self._previous_environment)

    def _start(self, spec: RayNodeSpec, role_flags: Sequence[str]) -> RayNode:
        folder = self._folder / str(len(self.nodes))
        variables = self._variables
        if spec.gpus and len(self._devices) >= spec.gpus:
            own, self._devices = self._devices[: spec.gpus], self._devices[spec.gpus :]
            variables = {**variables, **env.device_variables(own)}
        # Any free ports: by default all nodes give the same ones to their workers.
        ports = [f"--{each}=0" for each in _PORTS]
        self.nodes[spec.name] = RayNode(spec, [*role_flags, *ports], folder, variables)
        return self.nodes[spec.name]

    def _head_flags(self) -> list[str]:
        flags = head_flags(int(self.address.rpartition(":")[2]))
        if find_spec("grpc") is not None:  # then Ray's client server starts, at a fixed port
            flags.append(f"--ray-client-server-port={free_port(_ADDRESS)}")
        return flags


def _node_specs(groups: Sequence[GroupSpec], devices: int) -> list[RayNodeSpec]:
    hosts = sum(group.hosts for group in groups)
    store_bytes = emulated_store_bytes(FreeMemory.here(), hosts)
    cores = len(os.sched_getaffinity(0))
    return [
        RayNodeSpec(
            group=group.name,
            name=name,
            address=_ADDRESS,
            cpus=group.cpus or cores,
            gpus=_device_count(group, devices, is_first=group is groups[0]),
            store_bytes=store_bytes,
        )
        for group in groups
        for name in group.host_names()
    ]


def _device_count(group: GroupSpec, devices: int, *, is_first: bool) -> int:
    if group.gpus is not None:
        return group.gpus
    return devices // group.hosts if is_first else 0
