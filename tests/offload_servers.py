"""Real offload servers for the tests, as auxiliary hosts of scripts that run without a launcher."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.offload.connection import AuxiliaryHost, HostsFile
from jobs import clean_environment

_ADDRESS = "127.0.0.1"
_LONGEST_S = 600.0  # of a script, on a machine that does much else


class OffloadServers:
    """Offload servers on this machine, and the hosts file by which a script finds them.

    Args:
        folder: The job's; the files of this class lie in one below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = folder / "servers"
        self._own.mkdir()
        self._output = self._own / "output"
        self._key = secrets.token_bytes(32)
        self._hosts: list[AuxiliaryHost] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.cores = 8
        self.partitions = 0  # among how many workers there iterable datasets are shared

    def start(self, name: str, cores: int, key: bytes | None = None) -> None:
        """Start one; what it makes finds its name in the variable SERVER."""
        key_file = self._own / f"{name}.key"
        key_file.write_bytes(key or self._key)
        reading, writing = os.pipe()
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.offload.server", "--parent",
             str(os.getpid()), "--announce", str(writing), "--key", str(key_file),
             "--address", _ADDRESS, "--cores", str(cores)],
            cwd=self._folder,
            env=clean_environment(SERVER=name),
            pass_fds=[writing],
        )  # fmt: skip
        os.close(writing)
        with os.fdopen(reading) as announced:
            port = json.loads(announced.readline())["port"]
        self._hosts.append(AuxiliaryHost(name=name, address=_ADDRESS, port=port))
        self.write_hosts_file()

    def write_hosts_file(self) -> Path:
        """Write the hosts file anew; return it."""
        path = self._own / "hosts.json"
        draft = path.with_suffix(f".draft-{threading.get_ident()}")
        content = HostsFile(
            key=self._key.hex(), folder=str(self._folder), cores=self.cores,
            partitions=self.partitions, hosts=tuple(self._hosts),
        )  # fmt: skip
        draft.write_bytes(content.to_bytes())
        draft.replace(path)
        return path

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a server a signal."""
        self.processes[name].send_signal(number)

    def environment(self) -> dict[str, str]:
        """Return the variables of a script that is to use them."""
        others_first = {"OTHERS_FIRST": str(len(self._hosts))} if self._hosts else {}
        return clean_environment(
            **others_first,
            HEADRACE_OFFLOAD=str(self.write_hosts_file()),
            PYTHONPATH=f"{SITECUSTOMIZE_DIR}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
        )

    def run(self, script: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the folder to its end; `extra` are variables of it."""
        return self._run(script, *arguments, environment={**self.environment(), **extra})

    def run_without(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the folder to its end with nothing of ours in it."""
        return self._run(script, *arguments, environment=clean_environment())

    def _run(
        self, script: str, *arguments: str, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, script, *arguments],
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )

    @contextmanager
    def running(self, script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a script of the folder meanwhile; `output` returns what it has printed."""
        with self._output.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", script, *arguments],
                cwd=self._folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def output(self) -> str:
        """Return what the running script has printed, to stdout and stderr."""
        return self._output.read_text()

    def close(self) -> None:
        """End all servers."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
