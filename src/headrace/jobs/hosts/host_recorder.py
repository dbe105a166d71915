"""The process that records a host on which a script under --driver has Ray start its workers.

The host's agent starts it as `python -m headrace.jobs.hosts.host_recorder --parent PID --announce
FD --request FILE`. It announces that the recording has begun, and records until it is stopped; it
ends with the agent. The agent sends the records to the job's driver.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.core.process.parent_death import die_with_parent, read_wrapper_arguments
from headrace.core.process.supervision import STOP_SIGNALS
from headrace.jobs.host_run import READY, Recording, announce_refusal
from headrace.jobs.spec import JobSpec
from headrace.records.host_place import HostPlace
from headrace.records.records_link import RecordsLink
from headrace.records.run_folder import RunFolder


def main(arguments: Sequence[str]) -> int:
    """Record until this process is stopped, and return its exit code."""
    flags, _ = read_wrapper_arguments(arguments)
    die_with_parent(int(flags["parent"]))
    stopped = threading.Event()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stopped.set())
    request = json.loads(Path(flags["request"]).read_text(encoding="utf-8"))
    folder = RunFolder(Path(env.RUN_DIR.get() or ".").absolute())
    place = HostPlace(**request["place"])
    announce_fd = int(flags["announce"])
    try:
        recording = Recording(folder, place, JobSpec.from_json(request["spec"]).recording)
        link = RecordsLink(request["link"])
        link.make(folder.records(place.attempt))
    except HeadraceError as error:
        announce_refusal(announce_fd, error)
        return error.exit_code
    os.write(announce_fd, json.dumps({READY: True}).encode() + b"\n")
    stopped.wait()
    link.remove()
    recording.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
