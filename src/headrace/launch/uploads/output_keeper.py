"""The process that uploads what a job makes: beside the ranks, never in one.

`python -m headrace.launch.uploads.output_keeper job|part` reads its task as one line of JSON. For a
job it takes the lease on the output path, says so on its standard output, and uploads what is
synchronised while the job runs; once its input says how the job has ended, everything. On hosts
that do not share the launcher's machine one does likewise for a part, without a lease.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from headrace.core.errors import CheckpointError, HeadraceError, StorageError, UsageError
from headrace.core.lifetime import leave_signals_to_the_parent
from headrace.data.storage import declare_leaf, open_store
from headrace.launch.told import tell
from headrace.launch.uploads.asked import Asked, first_line
from headrace.launch.uploads.keep_task import OutputTask
from headrace.launch.uploads.lease import Lease
from headrace.launch.uploads.outputs import Outputs

_LOOK_EVERY_S = 1.0
_NICE = 10


def main(arguments: list[str]) -> int:
    """Do the task that standard input tells and return the exit code."""
    task = OutputTask.from_json(first_line())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # see open_files
    leave_signals_to_the_parent()
    declare_leaf()
    os.nice(_NICE)
    try:
        return _keep(task, of_parts=arguments == ["part"])
    except HeadraceError as error:
        _tell(str(error))
        return error.exit_code
    except OSError as error:
        _tell(f"{task.run}: {error}")
        return 1


def _keep(task: OutputTask, *, of_parts: bool) -> int:
    store = open_store(task.url)
    lease = Lease(store, task.job)
    if not of_parts:
        try:
            lease.take()
        except StorageError as error:
            raise UsageError(
                f"--output-path {store.url} cannot be written to: {error} Give a URL that can be, "
                "or the credentials for it."
            ) from error
        sys.stdout.write("taken\n")
        sys.stdout.flush()
    outputs = Outputs(store, task.job, Path(task.run), _tell)
    asked = Asked()
    try:
        _meanwhile(outputs, asked, None if of_parts else lease)
        was_asked, _, deadline_s = asked.end()
        if was_asked:
            _finish(outputs, deadline_s, of_parts=of_parts)
    finally:
        if not of_parts:
            lease.release()
    return 0


def _meanwhile(outputs: Outputs, asked: Asked, lease: Lease | None) -> None:
    failing = False
    while not asked.within(_LOOK_EVERY_S):
        try:
            if lease is not None:
                lease.renew()
            outputs.meanwhile()
        except CheckpointError:
            raise
        except OSError as error:  # a StorageError is one
            if not failing:
                _tell(f"{error} It is tried again until it succeeds.")
            failing = True
        else:
            failing = False


def _finish(outputs: Outputs, deadline_s: float, *, of_parts: bool) -> None:
    last = threading.Timer(deadline_s, _give_up, [deadline_s])
    last.daemon = True
    last.start()
    outputs.at_the_end(of_parts=of_parts)
    last.cancel()


def _give_up(deadline_s: float) -> None:
    _tell(
        f"what the job has made was not uploaded within {deadline_s:.0f} s; it is still in the "
        "run's folder. Start the run again (headrace resume) to have it uploaded."
    )
    os._exit(1)


def _tell(text: str) -> None:
    tell(f"headrace: output: {text}\n")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of the object-store client live on; see cli/main.py
