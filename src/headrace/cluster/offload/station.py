"""The process on an auxiliary host that makes batches for ranks elsewhere.

`python -m headrace.cluster.offload.station` stands in the job's folder, tells its port as a line of
JSON, and ends with its parent. Its arguments: --parent PID, --announce FD for that line, --key FILE
with the job's key, --address to listen at, --cores that it may use.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.cluster.offload.link import NoEntryError, admit
from headrace.cluster.offload.session import Session
from headrace.cluster.offload.shares import Cores
from headrace.core.lifetime import die_with_parent

_ADMIT_S = 10.0
_WAITING = 64


def main(arguments: Sequence[str]) -> None:
    """Serve receivers until the parent ends."""
    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(told["--parent"]))
    key = Path(told["--key"]).read_bytes()
    cores = Cores(int(told["--cores"]))
    with socket.create_server((told["--address"], 0), backlog=_WAITING) as listening:
        port = listening.getsockname()[1]
        os.write(int(told["--announce"]), json.dumps({"port": port}).encode() + b"\n")
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_serve, args=[connection, key, cores], daemon=True).start()


def _serve(connection: socket.socket, key: bytes, cores: Cores) -> None:
    connection.settimeout(_ADMIT_S)
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        admit(connection, key)
    except (NoEntryError, OSError):
        connection.close()  # nothing is told to whoever is not of this job
        return
    Session(connection, cores).run()


if __name__ == "__main__":
    main(sys.argv[1:])
