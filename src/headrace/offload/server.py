"""The offload server: the process on an auxiliary host that makes batches for ranks elsewhere.

`python -m headrace.offload.server` starts in the job's folder, reports its port as a line of JSON,
and ends with its parent. Its arguments: --parent PID, --announce FD for that line, --key FILE with
the job's key, --address to listen at, --cores that it may use.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.core.files import raise_open_file_limit
from headrace.core.process.parent_death import die_with_parent
from headrace.data.loader.memory_budget import memory_for_batches
from headrace.offload.capacity import SharedCores
from headrace.offload.protocol import AuthenticationError, authenticate_client, configure_socket
from headrace.offload.server_session import ServerSession

_AUTHENTICATION_S = 10.0
_MAX_UNAUTHENTICATED = 64  # connections that have not proved the key yet
_PAUSE_S = 0.1


def main(arguments: Sequence[str]) -> None:
    """Serve receivers until the parent ends."""
    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(told["--parent"]))
    raise_open_file_limit()
    key_file = Path(told["--key"])
    key = key_file.read_bytes()
    cores = SharedCores(int(told["--cores"]), memory_for_batches())
    with socket.create_server((told["--address"], 0), backlog=_MAX_UNAUTHENTICATED) as listening:
        port = listening.getsockname()[1]
        os.write(int(told["--announce"]), json.dumps({"port": port}).encode() + b"\n")
        strangers = threading.BoundedSemaphore(_MAX_UNAUTHENTICATED)
        while True:
            strangers.acquire()
            try:
                connection, _ = listening.accept()
                threading.Thread(
                    target=_serve,
                    args=[connection, key, cores, key_file.parent, strangers],
                    daemon=True,
                ).start()
            except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
                strangers.release()
                sys.stderr.write(f"headrace: a rank could not be let in: {error}\n")
                time.sleep(_PAUSE_S)


def _serve(
    connection: socket.socket, key: bytes, cores: SharedCores, folder: Path,
    strangers: threading.BoundedSemaphore,
) -> None:  # fmt: skip
    try:
        configure_socket(connection)
        authenticate_client(connection, key, _AUTHENTICATION_S)
    except (AuthenticationError, OSError):
        connection.close()  # nothing is told to whoever is not of this job
        return
    finally:
        strangers.release()
    try:
        ServerSession(connection, cores, folder).run()
    except OSError as error:
        sys.stderr.write(f"headrace: a rank's batches cannot be made: {error}\n")
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
