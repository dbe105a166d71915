"""A Ray cluster on this machine alone: every host of every group is a Ray node of its own.

So that a job with instance groups can be tried on a laptop. The hosts are emulated: they share the
machine's cores, memory and network.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from importlib.util import find_spec

from headrace.cluster.node_process import NodeProcess, NodeShape, head_flags, make_node_folder
from headrace.cluster.store_size import FreeMemory, emulated_store_bytes
from headrace.cluster.token import new_token, write_token_file
from headrace.contracts.groups import Group
from headrace.core import env

_ADDRESS = "127.0.0.1"
_START_S = 120.0
_PORTS = ("dashboard-agent-listen-port", "min-worker-port", "max-worker-port")


class LocalCluster:
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

    def __init__(self, groups: Sequence[Group], *, devices: Sequence[str]) -> None:
        shapes = _shapes(groups, len(devices))
        self._devices = list(devices)  # that no host has yet
        self._folder = make_node_folder()
        self._variables = write_token_file(self._folder / "token", new_token())
        self._before = env.values_of(self._variables)
        env.change(self._variables)  # this process connects too
        self.address = f"{_ADDRESS}:{_free_port()}"
        self.nodes: dict[str, NodeProcess] = {}
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

    def add(self, shape: NodeShape) -> NodeProcess:
        """Start one more host, and return it; it may not be up yet."""
        return self._start(shape, [f"--address={self.address}"])

    def close(self) -> None:
        """End all hosts; the head last, as the others tell it that they leave."""
        head, *others = self.nodes.values() if self.nodes else (None,)
        for node in others:
            node.ask_to_end()
        for node in others:
            node.end()
        if head is not None:
            head.ask_to_end()
            head.end()
        shutil.rmtree(self._folder, ignore_errors=True)
        env.change(self._before)

    def _start(self, shape: NodeShape, place: Sequence[str]) -> NodeProcess:
        folder = self._folder / str(len(self.nodes))
        variables = self._variables
        if shape.gpus and len(self._devices) >= shape.gpus:
            own, self._devices = self._devices[: shape.gpus], self._devices[shape.gpus :]
            variables = {**variables, **env.device_variables(own)}
        # Ports at will: by default every node hands out the same ones to its workers.
        ports = [f"--{each}=0" for each in _PORTS]
        node = NodeProcess(shape, [*place, *ports], folder, variables)
        self.nodes[shape.name] = node
        return node

    def _head_flags(self) -> list[str]:
        flags = head_flags(int(self.address.rpartition(":")[2]))
        if find_spec("grpc") is not None:  # then Ray serves its client, always at the same port
            flags.append(f"--ray-client-server-port={_free_port()}")
        return flags


def _shapes(groups: Sequence[Group], devices: int) -> list[NodeShape]:
    hosts = sum(group.hosts for group in groups)
    store_bytes = emulated_store_bytes(FreeMemory.here(), hosts)
    cores = len(os.sched_getaffinity(0))
    return [
        NodeShape(
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


def _devices_of(group: Group, devices: int, *, is_first: bool) -> int:
    if group.gpus is not None:
        return group.gpus
    return devices // group.hosts if is_first else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        return int(probe.getsockname()[1])
