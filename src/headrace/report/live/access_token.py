"""The token of the live page's server, kept for its user so that open pages survive a restart."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

from headrace.core import env

_KEPT_S = 7 * 86400.0
_BYTES = 24
_LENGTH = len(secrets.token_urlsafe(_BYTES))


def stored_token(runs: Path, address: str) -> str:
    """Return the token of the servers of a folder of runs at an address, of this user.

    It is a new one where there is none, where a week has passed since it was made, or where others
    could read it. One that cannot be kept is this server's alone.
    """
    try:
        file = _token_file(runs, address)
    except RuntimeError:  # a user without a home
        return secrets.token_urlsafe(_BYTES)
    known = _read(file)
    token = known or secrets.token_urlsafe(_BYTES)
    if not known:
        with suppress(OSError):
            _write(file, token)
    return token


def _token_file(runs: Path, address: str) -> Path:
    state = Path(env.STATE_HOME.get() or "~/.local/state").expanduser()
    name = hashlib.sha256(f"{runs}\0{address}".encode(errors="surrogateescape")).hexdigest()[:16]
    return state / "headrace" / f"live-{name}.token"


def _read(file: Path) -> str:
    """Return the token in a file; an empty text: there is none that may be used."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # none, a link, or closed to this user
        return ""
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        is_private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
        is_fresh = 0 <= time.time() - status.st_mtime < _KEPT_S
        if not (is_private and status.st_uid == os.geteuid() and is_fresh):
            return ""
        token = opened.read(_LENGTH + 1).decode("ascii", errors="replace")
    return token if len(token) == _LENGTH else ""


def _write(file: Path, token: str) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as made:
        made.write(token.encode())
