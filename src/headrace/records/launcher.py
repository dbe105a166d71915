"""The launcher of an attempt: its identity, its job request, and its lock on the run folder.

The kernel releases the lock when its process ends. Unlike a pid it also works across containers,
and across hosts if their shared file system has locks.
"""

from __future__ import annotations

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
from headrace.core.file_lock import is_locked, lock_within, open_lock_file
from headrace.records.redaction import HIDDEN, is_secret, redact

_START_TOLERANCE_S = 1.0  # of a start time read twice, if the clock was adjusted in between


def process_identity(pid: int) -> dict[str, Any]:
    """Return host, pid and start time, which identify a process of this host."""
    try:
        began_s = psutil.Process(pid).create_time()
    except psutil.Error:  # it has ended
        began_s = 0.0
    return {"host": platform.node(), "pid": pid, "began_s": began_s}


def running_pid(launcher: Mapping[str, Any]) -> int | None:
    """Return the pid of the process of an identity if it runs on this host, else None."""
    if not launcher or launcher["host"] != platform.node():
        return None
    try:
        process = psutil.Process(launcher["pid"])
        is_same = abs(process.create_time() - launcher["began_s"]) < _START_TOLERANCE_S
        is_alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process.pid if is_same and is_alive else None


def has_ended_on_this_host(launcher: Mapping[str, Any]) -> bool:
    """Whether the process of an identity ran on this host and has ended."""
    is_here = bool(launcher) and launcher["host"] == platform.node()
    return is_here and running_pid(launcher) is None


def take_job_request() -> dict[str, Any]:
    """Return the job request from the environment, secrets hidden, and remove it from there."""
    text = env.JOB_REQUEST.get()
    env.change({env.JOB_REQUEST.name: None})
    if text is None:
        return {}
    request: dict[str, Any] = hide_secrets(json.loads(text))
    return request


def hide_secrets(value: Any, name: str = "") -> Any:
    """Return a JSON value with secrets hidden, by the names of fields and within URLs."""
    if isinstance(value, dict):
        return {key: hide_secrets(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [hide_secrets(each, name) for each in value]
    if name and is_secret(name):
        return HIDDEN
    return redact([value])[0] if isinstance(value, str) else value


_LOCK_FILE = "run.json.held"
_EXIT_TIMEOUT_S = 10.0  # for the kernel to end the processes of a killed launcher
_LOCK_WAIT_S = 0.1
_POLL_S = 0.02

_LOCKS: dict[Path, int] = {}  # open for as long as this process lives
_MUTEX = threading.Lock()


def lock_run(folder: Path) -> bool:
    """Lock a run's folder until this process ends; return False if another one has it.

    On a file system without locks every process succeeds.
    """
    with _MUTEX:
        if folder in _LOCKS:
            return True
        descriptor = open_lock_file(folder / _LOCK_FILE)
        # `is_locked` may hold it for an instant.
        is_ours = lock_within(descriptor, _LOCK_WAIT_S, required=False)
        if is_ours:
            _LOCKS[folder] = descriptor
        else:
            os.close(descriptor)
        return is_ours


def is_run_locked(folder: Path) -> bool:
    """Whether another process has locked a run's folder."""
    return folder not in _LOCKS and is_locked(folder / _LOCK_FILE, unknown=False)


def wait_for_killed_launcher(folder: Path, launcher: Mapping[str, Any]) -> None:
    """Wait up to ten seconds for a launcher that was killed here: its processes hold the lock."""
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    while is_run_locked(folder) and time.monotonic() < deadline:
        if not has_ended_on_this_host(launcher):
            return
        time.sleep(_POLL_S)
