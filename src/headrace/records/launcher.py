"""The launcher of an attempt: its identity, its job request, and its lock on the run folder.

The kernel lifts the lock with the process that has it. It holds where a pid says nothing: across
containers, and across hosts whose shared disk locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from headrace.core import env
from headrace.records.redaction import HIDDEN, is_secret, redact

_START_TOLERANCE_S = 1.0  # two reads of when a process began, after the clock was set a little


def process_identity(pid: int) -> dict[str, Any]:
    """Return what tells a process of this host from any other one."""
    try:
        began_s = psutil.Process(pid).create_time()
    except psutil.Error:  # it has ended
        began_s = 0.0
    return {"host": platform.node(), "pid": pid, "began_s": began_s}


def running_pid(launcher: Mapping[str, Any]) -> int | None:
    """Return the pid of a process that `process_identity` told, while it runs on this host."""
    if not launcher or launcher["host"] != platform.node():
        return None
    try:
        process = psutil.Process(launcher["pid"])
        is_it = abs(process.create_time() - launcher["began_s"]) < _START_TOLERANCE_S
        lives = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process.pid if is_it and lives else None


def has_ended_on_this_host(launcher: Mapping[str, Any]) -> bool:
    """Whether a process that `process_identity` told was one of this host, and has ended."""
    is_here = bool(launcher) and launcher["host"] == platform.node()
    return is_here and running_pid(launcher) is None


def take_job_request() -> dict[str, Any]:
    """Return what this process was asked for, secrets hidden; those it starts are not told."""
    text = env.JOB_REQUEST.get()
    env.change({env.JOB_REQUEST.name: None})
    if text is None:
        return {}
    asked: dict[str, Any] = hide_secrets(json.loads(text))
    return asked


def hide_secrets(value: Any, name: str = "") -> Any:
    """Return what JSON holds without what looks like a secret by its name, or within a URL."""
    if isinstance(value, dict):
        return {key: hide_secrets(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [hide_secrets(each, name) for each in value]
    if name and is_secret(name):
        return HIDDEN
    return redact([value])[0] if isinstance(value, str) else value


_LOCK_FILE = "run.json.held"
_EXIT_TIMEOUT_S = (
    10.0  # what a killed launcher has started ends with it, at once but for the kernel
)
_POLL_S = 0.02
_ATTEMPTS = 5

_LOCKS: dict[Path, int] = {}  # open for as long as this process lives
_MUTEX = threading.Lock()


def lock_run(folder: Path) -> bool:
    """Hold a run's folder until this process ends; return False where another one does.

    A disk without locks is held by all who ask.
    """
    with _MUTEX:
        if folder in _LOCKS:
            return True
        descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for _ in range(_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (
                BlockingIOError
            ):  # or one who looks, as `is_run_locked` does, has it for a moment
                time.sleep(_POLL_S)
                continue
            except OSError:  # a disk without locks
                os.close(descriptor)
                return True
            _LOCKS[folder] = descriptor
            return True
        os.close(descriptor)
        return False


def is_run_locked(folder: Path) -> bool:
    """Whether another process holds a run's folder."""
    if folder in _LOCKS:
        return False
    try:
        descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
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


def wait_for_killed_launcher(folder: Path, launcher: Mapping[str, Any]) -> None:
    """Wait a little while processes hold a folder whose launcher was killed on this host.

    Args:
        folder: The run's.
        launcher: As `process_identity` told it.
    """
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    while is_run_locked(folder) and time.monotonic() < deadline:
        if not has_ended_on_this_host(launcher):
            return
        time.sleep(_POLL_S)
