"""The process that leads an attempt: which one it is, and what it was asked for."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

import psutil

from headrace.core import env
from headrace.records.redaction import HIDDEN, is_secret, redact

_SAME_S = 1.0  # two reads of when a process began, after the clock was set a little


def identity_of(pid: int) -> dict[str, Any]:
    """Return what tells a process of this host from any other one."""
    try:
        began_s = psutil.Process(pid).create_time()
    except psutil.Error:  # it has ended
        began_s = 0.0
    return {"host": platform.node(), "pid": pid, "began_s": began_s}


def living_pid(launcher: Mapping[str, Any]) -> int | None:
    """Return the pid of a process that `identity_of` told, while it runs on this host."""
    if not launcher or launcher["host"] != platform.node():
        return None
    try:
        process = psutil.Process(launcher["pid"])
        is_it = abs(process.create_time() - launcher["began_s"]) < _SAME_S
        lives = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process.pid if is_it and lives else None


def is_dead_here(launcher: Mapping[str, Any]) -> bool:
    """Whether a process that `identity_of` told was one of this host, and has ended."""
    is_here = bool(launcher) and launcher["host"] == platform.node()
    return is_here and living_pid(launcher) is None


def take_asked() -> dict[str, Any]:
    """Return what this process was asked for, secrets hidden; those it starts are not told."""
    text = env.ASKED.get()
    env.change({env.ASKED.name: None})
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
