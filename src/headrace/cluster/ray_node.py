"""One Ray node on this machine: process, authentication token, size of the object store.

The process is `ray start --block`, which ends with whoever started it. Token authentication is
always on; the token is in a file that only its owner may read, and processes get the file's path,
so that neither an environment nor a command line shows the token. Of the object store the most is
set: what Ray's objects do not take is not taken.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.core.process.process_groups import session_command
from headrace.data.loader.memory_budget import usable_memory
from headrace.platforms.instance_groups import GROUP_LABEL

AUTH_FILE_HELP = (
    "Make one with `(umask 077; openssl rand -hex 32 > FILE)`, copy it to every host, and name it "
    "there: --token-file FILE."
)


def new_token() -> str:
    """Return a token that nobody had before."""
    return secrets.token_hex(32)


def configured_token(token_file: str | None) -> str | None:
    """Return the token that somebody gave this host; None: nobody did.

    Args:
        token_file: The file that a flag names; it comes before what Ray's variables say.

    Raises:
        UsageError: The file cannot be read, or has no token in it.
    """
    if token_file is None and (token := env.RAY_AUTH_TOKEN.get()):
        return token.strip()
    named = "--token-file" if token_file is not None else env.RAY_AUTH_TOKEN_PATH.name
    path = token_file if token_file is not None else env.RAY_AUTH_TOKEN_PATH.get()
    if path is None:
        return None
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise UsageError(
            f"{named} {path}: the token cannot be read: {reason}. {AUTH_FILE_HELP}"
        ) from None  # the cause may quote what is in the file
    if not token:
        raise UsageError(f"{named} {path}: the file is empty. {AUTH_FILE_HELP}")
    return token


def write_token_file(path: Path, token: str) -> dict[str, str | None]:
    """Write a token to a new file; return the variables by which Ray's processes use it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return token_variables(path)


def token_variables(path: Path) -> dict[str, str | None]:
    """Return the variables that have Ray ask for, and give, the token in a file."""
    return {
        env.RAY_AUTH_MODE.name: "token",
        env.RAY_AUTH_TOKEN_PATH.name: str(path),
        env.RAY_AUTH_TOKEN.name: None,  # it would come first
    }


_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Ray's object stores lie
_MIN_STORE_BYTES = 80 << 20  # Ray refuses less than 75 MiB
_AGENT_SHARE = 0.1  # of what is free: what agents say to a job's driver
# Where Ray Data keeps its blocks, as Ray would choose: a share of what is free, as far as the
# shared memory holds it; a store that it cannot hold lies in Ray's folder on disk, up to 10 GB.
_DATA_SHARE = 0.3
_SHARED_MEMORY_SHARE = 0.95
_DISK_STORE_BYTES = 10 * 10**9
_MAX_EMULATED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What is free on a host.

    Attributes:
        total_bytes: Of all its memory.
        shared_bytes: Of that, what the shared memory may take.
    """

    total_bytes: int
    shared_bytes: int

    @classmethod
    def here(cls) -> FreeMemory:
        """Return what is free on this host."""
        try:
            shared = shutil.disk_usage(_SHARED_MEMORY).free
        except OSError:  # a system without it: Ray then stores on disk
            shared = sys.maxsize
        return cls(usable_memory(), shared)


def emulated_store_bytes(memory: FreeMemory, hosts: int) -> int:
    """Return the most that each store may take of hosts that are emulated on one machine.

    Args:
        memory: The machine's.
        hosts: How many there are.

    Raises:
        LaunchError: There is too little for so many.
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
    """Return the most that the store of a host may take.

    Args:
        memory: The host's.
        holds_data: The job's script uses Ray itself; otherwise agents alone do.
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
# A node would start a Python process for each of its cores before anybody asks for one, and offer
# its figures to whoever connects.
_QUIET_VARIABLES = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodeSpec:
    """What a Ray node says of itself.

    Attributes:
        group: Its instance group.
        name: What it is called in messages, such as `gpu-0`.
        address: Its own address; None: what Ray finds.
        cpus: Cores; None: what Ray finds.
        gpus: Devices; None: what Ray finds.
        store_bytes: Memory of its object store; None: Ray's own choice.
    """

    group: str
    name: str
    address: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    store_bytes: int | None = None

    def flags(self) -> list[str]:
        """Return the flags of `ray start` that say so."""
        told = {
            "--node-ip-address": self.address,
            "--num-cpus": self.cpus,
            "--num-gpus": self.gpus,
            "--object-store-memory": self.store_bytes,
        }
        flags = [f"{flag}={value}" for flag, value in told.items() if value is not None]
        return [*flags, f"--labels={GROUP_LABEL}={self.group}", f"--node-name={self.name}"]


def head_flags(port: int) -> list[str]:
    """Return the flags of `ray start` for the node that others join.

    Args:
        port: Where they join it.
    """
    return ["--head", f"--port={port}", "--include-dashboard=false"]


def make_node_folder() -> Path:
    """Make a folder for Ray nodes; its name is short, as paths of sockets may not be long."""
    short = "/tmp" if os.access("/tmp", os.W_OK) else None  # noqa: S108 - made by mkdtemp
    return Path(tempfile.mkdtemp(prefix="headrace-ray-", dir=short))


class RayNode:
    """A Ray node that this process starts, and ends.

    Args:
        shape: What it is.
        place: Its flags of `ray start`: whether it is the head, or where the head is.
        folder: Where it may write; short, as sockets lie below it.
        variables: Set for it, for Ray's token first of all.
    """

    def __init__(
        self,
        shape: RayNodeSpec,
        place: Sequence[str],
        folder: Path,
        variables: Mapping[str, str | None],
    ) -> None:
        self.name = shape.name
        folder.mkdir(exist_ok=True)
        self._said = folder / "ray-start.log"
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
            "--disable-usage-stats", f"--temp-dir={folder}", *place, *shape.flags(),
        ]  # fmt: skip
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                session_command(sys.executable, command),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=env.child_environment({**_QUIET_VARIABLES, **variables}),
                start_new_session=True,  # ctrl-C comes to the job, which ends its hosts last
            )

    def wait_until_up(self, deadline_s: float) -> None:
        """Wait until Ray runs there.

        Args:
            deadline_s: By this time of the monotonic clock.

        Raises:
            LaunchError: It ended, or takes longer.
        """
        while not self.is_up():
            if time.monotonic() > deadline_s:
                raise LaunchError(
                    f"Ray did not start for {self.name} in time. It said:\n{self.last_lines()}"
                )
            time.sleep(_POLL_S)

    def is_up(self) -> bool:
        """Tell whether Ray runs there by now; raises LaunchError where it has ended."""
        if self.has_ended():
            raise LaunchError(
                f"Ray could not be started for {self.name}. It said:\n{self.last_lines()}"
            )
        return _STARTED_TEXT in self._text()

    def has_ended(self) -> bool:
        """Tell whether the node is no more."""
        return self._process.poll() is not None

    def last_lines(self) -> str:
        """Return what Ray said last."""
        return "\n".join(self._text().rstrip().splitlines()[-20:])

    def request_end(self) -> None:
        """Have the node end: what runs on it is asked to, then killed by Ray."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def end(self) -> None:
        """Wait for its end, and kill what is left of it."""
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel then ends what it had started
            self._process.wait()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the node a signal, for a test of what happens then."""
        self._process.send_signal(number)

    def _text(self) -> str:
        return self._said.read_text(errors="replace")
