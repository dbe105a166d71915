"""Ray nodes on this machine: process, authentication token, object store; and emulated hosts.

A node's process is `ray start --block`, which ends with the process that started it. Token
authentication is always on; the token is in a file that only its owner may read, and processes get
the file's path, so that neither an environment nor a command line shows the token. The size set for
the object store is an upper limit: memory is taken only by the objects in it.

Emulated hosts let a job with instance groups be tried on a laptop: a Ray node for each host, or
without Ray an agent in threads. They share the machine's cores, memory and network. The agents in
threads have the interface of Ray's actors, so that a rank group runs the same with Ray and without.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.cluster.agent import HostAgent
from headrace.cluster.host_identity import free_port
from headrace.cluster.ray_loopback import (
    LOOPBACK,
    LOOPBACK_HOOK,
    loopback_variables,
    reread_loopback_variables,
)
from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.process_groups import session_command
from headrace.core.process.process_kill import end_process
from headrace.core.world import usable_cores
from headrace.data.loader.memory_budget import usable_memory
from headrace.platforms.instance_groups import GROUP_LABEL, GroupSpec

AUTH_FILE_HELP = (
    "Make one with `(umask 077; openssl rand -hex 32 > FILE)`, copy it to every host, and name it "
    "there: --token-file FILE."
)


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_hex(32)


def configured_token(token_file: str | None) -> str | None:
    """Return the token of --token-file, else of Ray's variables; None if neither is given.

    Raises UsageError where the file cannot be read, or has no token in it.
    """
    if token_file is None and (token := env.RAY_AUTH_TOKEN.get()):
        return token.strip()
    source = "--token-file" if token_file is not None else env.RAY_AUTH_TOKEN_PATH.name
    path = token_file if token_file is not None else env.RAY_AUTH_TOKEN_PATH.get()
    if path is None:
        return None
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise UsageError(
            f"{source} {path}: the token cannot be read: {reason}. {AUTH_FILE_HELP}"
        ) from None  # the cause may quote what is in the file
    if not token:
        raise UsageError(f"{source} {path}: the file is empty. {AUTH_FILE_HELP}")
    return token


def write_token_file(path: Path, token: str) -> dict[str, str | None]:
    """Write a token to a new file; return the variables by which Ray's processes use it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return {
        env.RAY_AUTH_MODE.name: "token",
        env.RAY_AUTH_TOKEN_PATH.name: str(path),
        env.RAY_AUTH_TOKEN.name: None,  # it would take precedence
    }


_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Ray's object stores lie
_MIN_STORE_BYTES = 80 << 20  # Ray refuses less than 75 MiB
_AGENT_SHARE = 0.1  # of what is free, for the messages between agents and driver
# Ray's own choice, for Ray Data's blocks: a share of the free memory, limited by the shared memory;
# a store that exceeds that is in Ray's folder on disk, with 10 GB at most.
_DATA_SHARE = 0.3
_SHARED_MEMORY_SHARE = 0.95
_DISK_STORE_BYTES = 10 * 10**9
_MAX_EMULATED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The free memory of a host."""

    total_bytes: int
    shared_bytes: int  # the part that shared memory may take

    @classmethod
    def here(cls) -> FreeMemory:
        """Return the free memory of this host."""
        try:
            shared = shutil.disk_usage(_SHARED_MEMORY).free
        except OSError:  # without it Ray's store is on disk
            shared = sys.maxsize
        return cls(usable_memory(), shared)


def emulated_store_bytes(memory: FreeMemory, hosts: int) -> int:
    """Return the size limit of each object store, in bytes, of hosts emulated on one machine.

    Raises LaunchError where the machine's memory is too little for so many.
    """
    free = min(memory.total_bytes, memory.shared_bytes)
    share = int(free * _AGENT_SHARE) // hosts
    if share < _MIN_STORE_BYTES and free < hosts * _MIN_STORE_BYTES:
        raise LaunchError(
            f"{_SHARED_MEMORY} has {free >> 20} MiB free, too little for the object stores of "
            f"{hosts} emulated hosts ({_MIN_STORE_BYTES >> 20} MiB each). Give it more (docker "
            "run --shm-size=2g), or emulate fewer hosts."
        )
    return min(max(share, _MIN_STORE_BYTES), _MAX_EMULATED_BYTES)


def object_store_bytes(memory: FreeMemory, *, holds_data: bool) -> int:
    """Return the size limit of a host's object store, in bytes.

    With `holds_data` the job's script uses Ray itself; else agents alone do.
    """
    if holds_data:
        most = max(int(memory.shared_bytes * _SHARED_MEMORY_SHARE), _DISK_STORE_BYTES)
        share = min(int(memory.total_bytes * _DATA_SHARE), most)
    else:
        share = int(min(memory.total_bytes, memory.shared_bytes) * _AGENT_SHARE)
    return max(share, _MIN_STORE_BYTES)


_STARTED_TEXT = "Ray runtime started."  # what `ray start` prints once the node is up
_POLL_S = 0.05
_END_S = 10.0
# Without them a node starts a Python process per core in advance, and sends usage statistics.
_QUIET_VARIABLES = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodeSpec:
    """Name, resources and label of a Ray node; None leaves a choice to Ray."""

    group: str
    name: str  # in messages, such as `gpu-0`
    address: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    store_bytes: int | None = None  # the size limit of its object store

    def flags(self) -> list[str]:
        """Return the corresponding flags of `ray start`."""
        values = {
            "--node-ip-address": self.address,
            "--num-cpus": self.cpus,
            "--num-gpus": self.gpus,
            "--object-store-memory": self.store_bytes,
        }
        flags = [f"{flag}={value}" for flag, value in values.items() if value is not None]
        return [*flags, f"--labels={GROUP_LABEL}={self.group}", f"--node-name={self.name}"]


def head_flags(port: int) -> list[str]:
    """Return the flags of `ray start` for the head node, which others join at `port`."""
    return ["--head", f"--port={port}", "--include-dashboard=false"]


def make_node_folder() -> Path:
    """Make a folder for Ray nodes, with a short name: paths of Unix sockets are limited."""
    short = "/tmp" if os.access("/tmp", os.W_OK) else None  # noqa: S108 - made by mkdtemp
    return Path(tempfile.mkdtemp(prefix="headrace-ray-", dir=short))


def remove_node_folder(folder: Path) -> None:
    """Remove a folder of `make_node_folder`, after its nodes have ended."""
    shutil.rmtree(folder, ignore_errors=True)


class RayNode:
    """A Ray node that this process starts, and ends.

    The flags of its role make it the head, or name the head. Its folder needs a short path, as
    sockets are below it. The variables, such as those for Ray's token, are its processes'.
    """

    def __init__(
        self,
        spec: RayNodeSpec,
        role_flags: Sequence[str],
        folder: Path,
        variables: Mapping[str, str | None],
    ) -> None:
        self.name = spec.name
        folder.mkdir(exist_ok=True)
        self._log_file = folder / "ray-start.log"
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
            "--disable-usage-stats", f"--temp-dir={folder}", *role_flags, *spec.flags(),
        ]  # fmt: skip
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                session_command(sys.executable, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env.child_environment({**_QUIET_VARIABLES, **variables}),
                start_new_session=True,  # ctrl-C is for the job, which ends its hosts last
            )

    def wait_until_up(self, deadline_s: float) -> None:
        """Wait until the node is up, to a time of the monotonic clock; raises LaunchError."""
        while not self.is_up():
            if time.monotonic() > deadline_s:
                raise LaunchError(
                    f"Ray did not start for {self.name} in time. It said:\n{self.last_lines()}"
                )
            time.sleep(_POLL_S)

    def is_up(self) -> bool:
        """Return whether the node is up; raises LaunchError where it has ended."""
        if self.has_ended():
            raise LaunchError(
                f"Ray could not be started for {self.name}. It said:\n{self.last_lines()}"
            )
        return _STARTED_TEXT in self._text()

    def has_ended(self) -> bool:
        """Return whether the node has ended."""
        return self._process.poll() is not None

    def last_lines(self) -> str:
        """Return the last lines of Ray's output."""
        return "\n".join(self._text().rstrip().splitlines()[-20:])

    def request_end(self) -> None:
        """Ask the node to end; Ray terminates, then kills what runs on it."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def end(self) -> None:
        """Wait for the node's end, and kill it after ten seconds."""
        end_process(self._process, _END_S)  # the kernel then ends the node's processes

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the node a signal, for tests."""
        self._process.send_signal(number)

    def _text(self) -> str:
        return self._log_file.read_text(errors="replace")


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
        self._variables |= loopback_variables()
        self._previous_environment = env.values_of(self._variables)
        env.change(self._variables)  # as this process connects, too
        reread_loopback_variables()
        self.address = f"{LOOPBACK}:{free_port(LOOPBACK)}"  # the head's
        self.nodes: dict[str, RayNode] = {}  # by host name, such as `cpu-1`
        deadline_s = time.monotonic() + _START_S
        try:
            flags = head_flags(int(self.address.rpartition(":")[2]))
            if find_spec("grpc") is not None:  # then Ray's client server starts, at a fixed port
                flags.append(f"--ray-client-server-port={free_port(LOOPBACK)}")
            self._start(specs[0], flags)
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
        remove_node_folder(self._folder)
        env.change(self._previous_environment)
        reread_loopback_variables()

    def _start(self, spec: RayNodeSpec, role_flags: Sequence[str]) -> RayNode:
        folder = self._folder / str(len(self.nodes))
        variables = {**self._variables, env.RAY_START_HOOK.name: LOOPBACK_HOOK}
        if spec.gpus and len(self._devices) >= spec.gpus:
            own, self._devices = self._devices[: spec.gpus], self._devices[spec.gpus :]
            variables = {**variables, **env.device_variables(own)}
        # Any free ports: by default all nodes give the same ones to their workers.
        ports = [f"--{each}=0" for each in _PORTS]
        self.nodes[spec.name] = RayNode(spec, [*role_flags, *ports], folder, variables)
        return self.nodes[spec.name]


def _node_specs(groups: Sequence[GroupSpec], devices: int) -> list[RayNodeSpec]:
    hosts = sum(group.hosts for group in groups)
    store_bytes = emulated_store_bytes(FreeMemory.here(), hosts)
    cores = usable_cores()
    return [
        RayNodeSpec(
            group=group.name,
            name=name,
            address=LOOPBACK,
            cpus=group.cpus or cores,
            gpus=group.gpus_a_host(devices if group is groups[0] else 0),
            store_bytes=store_bytes,
        )
        for group in groups
        for name in group.host_names()
    ]
