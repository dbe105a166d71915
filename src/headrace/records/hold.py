"""Who leads a run: a lock on its folder, which the kernel lifts with the process that has it.

It holds where a pid says nothing: across containers, and across hosts whose shared disk locks.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.records.launcher import is_dead_here

_FILE = "run.json.held"
_LEAVING_S = 10.0  # what a killed launcher has started ends with it, at once but for the kernel
_LOOK_EVERY_S = 0.02
_LOOKS = 5

_HELD: dict[Path, int] = {}  # open for as long as this process lives
_TURN = threading.Lock()


def hold(folder: Path) -> bool:
    """Hold a run's folder until this process ends; return False where another one does.

    A disk without locks is held by all who ask.
    """
    with _TURN:
        if folder in _HELD:
            return True
        descriptor = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for _ in range(_LOOKS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # or one who looks, as `is_held` does, has it for a moment
                time.sleep(_LOOK_EVERY_S)
                continue
            except OSError:  # a disk without locks
                os.close(descriptor)
                return True
            _HELD[folder] = descriptor
            return True
        os.close(descriptor)
        return False


def is_held(folder: Path) -> bool:
    """Whether another process holds a run's folder."""
    if folder in _HELD:
        return False
    try:
        descriptor = os.open(folder / _FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # nobody ever did
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def wait_for_the_dead(folder: Path, launcher: Mapping[str, Any]) -> None:
    """Wait a little while processes hold a folder whose launcher was killed on this host.

    Args:
        folder: The run's.
        launcher: As `identity_of` told it.
    """
    deadline = time.monotonic() + _LEAVING_S
    while is_held(folder) and time.monotonic() < deadline:
        if not is_dead_here(launcher):
            return
        time.sleep(_LOOK_EVERY_S)
