"""Emulated hosts on one machine: a Ray node for each host, or without Ray an agent in threads.

So that a job with instance groups can be tried on a laptop. The hosts share the machine's cores,
memory and network. The agents in threads take the calls that a rank group makes of Ray, so that a
job of several hosts runs alike with Ray and without.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from headrace.cluster.agent import HostAgent
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

_MAX_CONCURRENT_CALLS = 4  # as for Ray's: while one waits for news, another tells to stop


class _NoRayError(Exception):
    """No call fails as Ray's do: an agent lives as long as whoever calls it."""


class _Exceptions:
    RayError = _NoRayError
    ActorUnavailableError = _NoRayError


class ThreadCalls:
    """What a gang asks of Ray, of agents in this process.

    Attributes:
        exceptions: Those of Ray's that it expects; none of them comes.
    """

    exceptions = _Exceptions

    def wait(
        self, calls: Sequence[Future[Any]], *, num_returns: int, timeout: float
    ) -> tuple[list[Future[Any]], list[Future[Any]]]:
        """Wait until a call has returned, and tell those that have from those that have not."""
        when = "FIRST_COMPLETED" if num_returns < len(calls) else "ALL_COMPLETED"
        wait(calls, timeout=timeout, return_when=when)
        done = [call for call in calls if call.done()]
        return done, [call for call in calls if not call.done()]

    def get(self, call: Future[Any]) -> Any:
        """Return what a call returned, or raise what it raised."""
        return call.result()


class ThreadActor:
    """An agent in this process; `actor.method.remote(...)` calls a method of it in a thread.

    Args:
        variables: What its programs have beside what is sent: the devices of an emulated host, say.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._agent = HostAgent(variables)
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT_CALLS, thread_name_prefix="agent")

    def __getattr__(self, method: str) -> _ActorMethod:
        """Return what calls a method."""
        return _ActorMethod(self._threads, getattr(self._agent, method))

    def close(self) -> None:
        """Kill what it still runs, and remove what it keeps."""
        with suppress(ProcessLookupError):
            self._agent.stop(signal.SIGKILL)
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._agent.leave()


class _ActorMethod:
    def __init__(self, threads: ThreadPoolExecutor, call: Callable[..., Any]) -> None:
        self._threads = threads
        self._call = call

    def remote(self, *arguments: Any) -> Future[Any]:
        return self._threads.submit(self._run, arguments)

    def _run(self, arguments: tuple[Any, ...]) -> Any:
        # As Ray does: what another call returns comes first.
        return self._call(
            *(each.result() if isinstance(each, Future) else each for each in arguments)
        )


_ADDRESS = "127.0.0.1"
_START_S = 120.0
_PORTS = ("dashboard-agent-listen-port", "min-worker-port", "max-worker-port")


class EmulatedCluster:
    """Ray on this machine, one node for each host of each group.

    Args:
        groups: Their hosts; the first host of the first group is the head.
        devices: Names of this machine's devices; the hosts of the first group share them, each
            with its own.

    Attributes:
        address: What others connect to.
        nodes: The nodes' processes by host name, such as `cpu-1`.

    Raises:
        LaunchError: Ray cannot be started.
    """

    def __init__(self, groups: Sequence[GroupSpec], *, devices: Sequence[str]) -> None:
        shapes = _node_specs(groups, len(devices))
        self._devices = list(devices)  # that no host has yet
        self._folder = make_node_folder()
        self._variables = write_token_file(self._folder / "token", new_token())
        self._before = env.values_of(self._variables)
        env.change(self._variables)  # this process connects too
        self.address = f"{_ADDRESS}:{_free_port()}"
        self.nodes: dict[str, RayNode] = {}
        deadline_s = time.monotonic() + _START_S
        try:
            self._start(shapes[0], self._head_flags())
            self.nodes[shapes[0].name].wait_until_up(deadline_s)
            for shape in shapes[1:]:
                self.add(shape)
            for node in self.nodes.values():
                node.wait_until_up(deadline_s)
        except BaseException:
            self.close()
            raise

    def add(self, shape: RayNodeSpec) -> RayNode:
        """Start one more host, and return it; it may not be up yet."""
        return self._start(shape, [f"--address={self.address}"])

    def close(self) -> None:
        """End all hosts; the head last, as the others tell it that they leave."""
        head, *others = self.nodes.values() if self.nodes else (None,)
        for node in others:
            node.request_end()
        for node in others:
            node.end()
        if head is not None:
            head.request_end()
            head.end()
        shutil.rmtree(self._folder, ignore_errors=True)
        env.change(self._before)

    def _start(self, shape: RayNodeSpec, place: Sequence[str]) -> RayNode:
        folder = self._folder / str(len(self.nodes))
        variables = self._variables
        if shape.gpus and len(self._devices) >= shape.gpus:
            own, self._devices = self._devices[: shape.gpus], self._devices[shape.gpus :]
            variables = {**variables, **env.device_variables(own)}
        # Ports at will: by default every node hands out the same ones to its workers.
        ports = [f"--{each}=0" for each in _PORTS]
        node = RayNode(shape, [*place, *ports], folder, variables)
        self.nodes[shape.name] = node
        return node

    def _head_flags(self) -> list[str]:
        flags = head_flags(int(self.address.rpartition(":")[2]))
        if find_spec("grpc") is not None:  # then Ray serves its client, always at the same port
            flags.append(f"--ray-client-server-port={_free_port()}")
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
            gpus=_devices_of(group, devices, is_first=group is groups[0]),
            store_bytes=store_bytes,
        )
        for group in groups
        for name in group.host_names()
    ]


def _devices_of(group: GroupSpec, devices: int, *, is_first: bool) -> int:
    if group.gpus is not None:
        return group.gpus
    return devices // group.hosts if is_first else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        return int(probe.getsockname()[1])
