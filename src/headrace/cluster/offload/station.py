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
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.cluster.offload.link import NoEntryError, admit, prepare
from headrace.cluster.offload.session import Session
from headrace.cluster.offload.shares import Cores
from headrace.core.files import allow_many_files
from headrace.core.lifetime import die_with_parent
from headrace.data.loader.memory import memory_for_batches

_ADMIT_S = 10.0
_MOST_STRANGERS = 64  # connections that have not proved the key yet
_PAUSE_S = 0.1


def main(arguments: Sequence[str]) -> None:
    """Serve receivers until the parent ends."""
    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(told["--parent"]))
    allow_many_files()
    key_file = Path(told["--key"])
    key = key_file.read_bytes()
    cores = Cores(int(told["--cores"]), memory_for_batches())
    with socket.create_server((told["--address"], 0), backlog=_MOST_STRANGERS) as listening:
        port = listening.getsockname()[1]
        os.write(int(told["--announce"]), json.dumps({"port": port}).encode() + b"\n")
        strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
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
    connection: socket.socket, key: bytes, cores: Cores, folder: Path,
    strangers: threading.BoundedSemaphore,
) -> None:  # fmt: skip
    try:
        prepare(connection)
        admit(connection, key, _ADMIT_S)
    except (NoEntryError, OSError):
        connection.close()  # nothing is told to whoever is not of this job
        return
    finally:
        strangers.release()
    try:
        Session(connection, cores, folder).run()
    except OSError as error:
        sys.stderr.write(f"headrace: a rank's batches cannot be made: {error}\n")
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
