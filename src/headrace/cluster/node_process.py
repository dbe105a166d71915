"""One Ray node on this machine: `ray start --block`, which ends with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.cluster.node_warden import warden_command
from headrace.contracts.groups import LABEL
from headrace.core import env
from headrace.core.errors import LaunchError

_STARTED = "Ray runtime started."  # what `ray start` prints once the node is up
_LOOK_EVERY_S = 0.05
_END_S = 10.0
# A node would start a Python process for each of its cores before anybody asks for one, and offer
# its figures to whoever connects.
_QUIET = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
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
        return [*flags, f"--labels={LABEL}={self.group}", f"--node-name={self.name}"]


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


class NodeProcess:
    """A Ray node that this process starts, and ends.

    Args:
        shape: What it is.
        place: Its flags of `ray start`: whether it is the head, or where the head is.
        folder: Where it may write; short, as sockets lie below it.
        variables: Set for it, for Ray's token first of all.
    """

    def __init__(
        self,
        shape: NodeShape,
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
                warden_command(sys.executable, command),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=env.child_environment({**_QUIET, **variables}),
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
            time.sleep(_LOOK_EVERY_S)

    def is_up(self) -> bool:
        """Tell whether Ray runs there by now; raises LaunchError where it has ended."""
        if self.has_ended():
            raise LaunchError(
                f"Ray could not be started for {self.name}. It said:\n{self.last_lines()}"
            )
        return _STARTED in self._text()

    def has_ended(self) -> bool:
        """Tell whether the node is no more."""
        return self._process.poll() is not None

    def last_lines(self) -> str:
        """Return what Ray said last."""
        return "\n".join(self._text().rstrip().splitlines()[-20:])

    def ask_to_end(self) -> None:
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
