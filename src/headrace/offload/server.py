"""The offload server: the process on an auxiliary host that makes batches for ranks elsewhere.

`python -m headrace.offload.server --parent PID --announce FD --key FILE --address HOST --cores N`
starts in the job's folder, writes its port as a line of JSON to FD, and ends with its parent. FILE
holds the job's key.
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
from headrace.core.process.wrapper import read_wrapper_arguments
from headrace.data.loader.memory_budget import memory_for_batches
from headrace.offload.capacity import SharedCores
from headrace.offload.protocol import AuthenticationError, authenticate_client, configure_socket
from headrace.offload.server_session import ServerSession

_AUTHENTICATION_S = 10.0
_MAX_UNAUTHENTICATED = 64  # connections that have not proved the key yet
_PAUSE_S = 0.1


def main(arguments: Sequence[str]) -> None:
    """Serve proxies until the parent ends."""
    options, _ = read_wrapper_arguments(arguments)
    die_with_parent(int(options["parent"]))
    raise_open_file_limit()
    key_file = Path(options["key"])
    key = key_file.read_bytes()
    cores = SharedCores(int(options["cores"]), memory_for_batches())
    with socket.create_server((options["address"], 0), backlog=_MAX_UNAUTHENTICATED) as listening:
        port = listening.getsockname()[1]
        os.write(int(options["announce"]), json.dumps({"port": port}).encode() + b"\n")
        unauthenticated = threading.BoundedSemaphore(_MAX_UNAUTHENTICATED)
        while True:
            unauthenticated.acquire()
            try:
                connection, _ = listening.accept()
                threading.Thread(
                    target=_serve,
                    args=[connection, key, cores, key_file.parent, unauthenticated],
                    daemon=True,
                ).start()
            except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
                unauthenticated.release()
                sys.stderr.write(f"headrace: a rank could not be let in: {error}\n")
                time.sleep(_PAUSE_S)


def _serve(
    connection: socket.socket, key: bytes, cores: SharedCores, folder: Path,
    unauthenticated: threading.BoundedSemaphore,
) -> None:  # fmt: skip
    try:
        configure_socket(connection)
        authenticate_client(connection, key, _AUTHENTICATION_S)
    except (AuthenticationError, OSError):
        connection.close()  # a stranger to the job gets no reply
        return
    finally:
        unauthenticated.release()
    try:
        ServerSession(connection, cores, folder).run()
    except OSError as error:
        sys.stderr.write(f"headrace: a rank's batches cannot be made: {error}\n")
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
