"""Hosts with addresses of their own on one machine: network namespaces on one bridge."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jobs import clean_environment, eventually, headrace

_HOSTS_FILES = Path("/etc/netns")  # `ip netns exec` has a host see the files in its folder there


def why_not() -> str | None:
    """Why hosts cannot be made here; None: they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2's ip"
    name = f"hr{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    pair = ["ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other"]
    made = subprocess.run(pair, capture_output=True, text=True, check=False)
    _ip("netns", "del", name)
    if made.returncode != 0:
        return f"network namespaces cannot be connected: {made.stderr.strip()}"
    return None


@dataclass(frozen=True)
class NetworkHost:
    """A host.

    Attributes:
        name: As the others call it.
        address: As they reach it.
        namespace: That of the network.
    """

    name: str
    address: str
    namespace: str

    def start(
        self, folder: Path, *arguments: str, empty: Path | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start `headrace` on it; what it says goes to a file of its name in the folder.

        Where a folder is `empty` there, though it is not here, it has a file system of its own.
        """
        mounted = ["sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(empty)]
        with self.terminal(folder).open("wb") as terminal:
            return subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.namespace,
                    *(mounted if empty else []),
                    *headrace(*arguments),
                ],
                cwd=folder,
                env=clean_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=subprocess.STDOUT,
            )

    def terminal(self, folder: Path) -> Path:
        return folder / f"{self.name}.terminal"

    def output(self, folder: Path) -> str:
        return self.terminal(folder).read_text()

    def pids(self) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def listens_at(self) -> set[int]:
        """The TCP ports at which anybody listens there, on whatever address."""
        lines = _ip("netns", "exec", self.namespace, "ss", "-ltnH").splitlines()
        return {int(line.split()[3].rpartition(":")[2]) for line in lines}

    def kill_all(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.pids(), f"the end of all on {self.name}")


def sagemaker(
    host: NetworkHost, groups: Mapping[str, Sequence[str]], training: str | None = None
) -> dict[str, str]:
    """The environment of a host of a SageMaker job with instance groups.

    Args:
        host: The host.
        groups: The names of the hosts of each group.
        training: The group that trains; None: the job does not say.
    """
    group_table = {
        name: {"hosts": hosts, "instance_group_name": name, "instance_type": "ml.any"}
        for name, hosts in groups.items()
    }
    (group,) = (name for name, hosts in groups.items() if host.name in hosts)
    return {
        "SM_HOSTS": json.dumps(sorted(name for hosts in groups.values() for name in hosts)),
        "SM_CURRENT_HOST": host.name,
        "SM_CURRENT_INSTANCE_GROUP": group,
        "SM_INSTANCE_GROUPS_DICT": json.dumps(group_table),
        "SM_DISTRIBUTION_INSTANCE_GROUPS": json.dumps([training] if training else []),
        "RAY_AUTH_TOKEN": "",
        "RAY_AUTH_TOKEN_PATH": "",
    }


def environments(host: NetworkHost) -> list[dict[str, str]]:
    """Those of a host's processes."""
    found = []
    for pid in host.pids():
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
            found.append(dict(entry.partition("=")[::2] for entry in text.split("\0")))
    return found


def ray_folders(hosts: Iterable[NetworkHost]) -> set[Path]:
    """Those of the hosts' Ray nodes, as long as these run: each has its token file there."""
    return {
        Path(variables["RAY_AUTH_TOKEN_PATH"]).parent
        for host in hosts
        for variables in environments(host)
        if variables.get("RAY_AUTH_TOKEN_PATH")
    }


@contextmanager
def network_hosts(names: Sequence[str]) -> Iterator[list[NetworkHost]]:
    """Have hosts meanwhile that know one another by name."""
    prefix = f"hr{secrets.token_hex(3)}"
    hosts = [
        NetworkHost(name, f"10.213.7.{number}", f"{prefix}-{number}")
        for number, name in enumerate(names, 1)
    ]
    known = "".join(f"{host.address} {host.name}\n" for host in hosts)
    switch = f"{prefix}-switch"
    namespaces = [switch]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(hosts):
            _ip("netns", "add", host.namespace)
            namespaces.append(host.namespace)
            folder = _HOSTS_FILES / host.namespace
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
            port = f"port{number}"
            _ip("-n", switch, "link", "add", port, "type", "veth",
                "peer", "name", "eth0", "netns", host.namespace)  # fmt: skip
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.namespace, "link", "set", device, "up")
        yield hosts
    finally:
        for host in hosts:
            if host.namespace in namespaces:
                host.kill_all()
        for namespace in namespaces:
            _ip("netns", "del", namespace)
            shutil.rmtree(_HOSTS_FILES / namespace, ignore_errors=True)
        with suppress(OSError):
            _HOSTS_FILES.rmdir()  # where nobody else has anything in it


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout
