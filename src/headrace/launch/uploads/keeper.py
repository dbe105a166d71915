"""The process that keeps a host's folder at a URL: beside the ranks, never in one.

`python -m headrace.launch.uploads.keeper fetch|keep` reads what it is to do as one line of JSON. To
fetch, it brings what is kept, and ends; the exit code tells how. To keep, it goes on until its
input says how the job has ended, or ends itself, as it does where whoever started it was killed;
then it uploads the last complete files. It forks nothing, so it may call object stores itself.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.core.lifetime import die_with_parent, leave_signals_to_the_parent
from headrace.data.storage import declare_leaf
from headrace.launch.told import tell
from headrace.launch.uploads.asked import Asked, first_line
from headrace.launch.uploads.keep_task import KeepTask
from headrace.launch.uploads.keeping import Keeping, keep_until
from headrace.launch.uploads.kept import FencedError, Kept
from headrace.launch.uploads.restoring import restore

LOOK_EVERY_S = 0.25
_NICE = 10
_TRIES = 10


def main(arguments: list[str]) -> int:
    """Do the task that standard input tells and return the exit code."""
    task = KeepTask.from_json(first_line())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # see open_files
    declare_leaf()
    try:
        if arguments == ["fetch"]:
            die_with_parent(task.parent)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ctrl-C ends it without a traceback
            return _fetch(task)
        leave_signals_to_the_parent()
        os.nice(_NICE)
        return _keep(task)
    except HeadraceError as error:
        _tell(task, str(error))
        return error.exit_code
    except OSError as error:
        _tell(task, f"{task.folder}: {error}")
        return 1


def _fetch(task: KeepTask) -> int:
    kept = Kept(task.url, lambda text: _tell(task, text))
    kept.check(task.host)
    with _alone(f"{task.lock}-fetch"):
        _wait_for_an_earlier_jobs(task.lock)
        restore(kept, Path(task.folder), lambda text: _tell(task, text))
    return 0


def _keep(task: KeepTask) -> int:
    asked = Asked()
    with _alone(task.lock, asked) as is_alone:
        if not is_alone:
            return 0  # another process of this machine has kept the folder all the while
        Path(task.lock).write_text(str(task.parent))
        kept = Kept(task.url, lambda text: _tell(task, text))
        keeping = Keeping(
            kept, Path(task.folder), task.host, task.others, lambda text: _tell(task, text)
        )
        _begin(keeping, asked, task)
        keep_until(keeping, asked.within, LOOK_EVERY_S, lambda text: _tell(task, text))
        return _finish(keeping, asked, task)


def _begin(keeping: Keeping, asked: Asked, task: KeepTask) -> None:
    told, tries = False, _TRIES
    while True:
        try:
            return keeping.begin()
        except FencedError:  # who kept these files before was about to end
            if (tries := tries - 1) == 0:
                raise
        except HeadraceError as error:
            if not isinstance(error, OSError) or asked.within(1.0):
                raise
            if not told:
                _tell(task, f"{error} It is tried again until it succeeds.")
            told = True


def _finish(keeping: Keeping, asked: Asked, task: KeepTask) -> int:
    """Upload the last files, within the deadline that was told."""
    was_asked, clean, deadline_s = asked.end()
    last = threading.Timer(deadline_s, _give_up, [task, deadline_s])
    last.daemon = True
    last.start()
    done = keeping.one_pass(at_the_end=clean, may_remove=was_asked)
    last.cancel()
    if done.waiting:
        _tell(
            task,
            f"not uploaded, being written when the job ended: {', '.join(done.waiting[:8])}"
            + (f" and {len(done.waiting) - 8} more" if len(done.waiting) > 8 else ""),
        )
    return 0


def _give_up(task: KeepTask, deadline_s: float) -> None:
    _tell(
        task,
        f"the last files of {task.folder} were not uploaded within {deadline_s:.0f} s; they are "
        "still there. Start the run again (headrace resume) to have them uploaded.",
    )
    os._exit(1)


@contextmanager
def _alone(lock: str, asked: Asked | None = None) -> Iterator[bool]:
    """Wait until no other process has the lock; False: the job was over before."""
    Path(lock).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _locked(descriptor):
            if asked is None:
                time.sleep(LOOK_EVERY_S)
            elif asked.within(LOOK_EVERY_S):
                yield False
                return
        yield True
    finally:
        os.close(descriptor)


def _wait_for_an_earlier_jobs(lock: str) -> None:
    """Wait while a keeper whose job was killed uploads what that one has left."""
    with suppress(FileNotFoundError), Path(lock).open("rb+") as file:
        while not _locked(file.fileno()):
            file.seek(0)
            parent = file.read().decode()
            if not parent or Path(f"/proc/{parent}").exists():
                return  # of this job: emulated hosts share the folder
            time.sleep(LOOK_EVERY_S)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        return True
    return True


def _tell(task: KeepTask, text: str) -> None:
    tell(f"headrace: {task.host}: {text}\n")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of the object-store client live on; see cli/main.py
