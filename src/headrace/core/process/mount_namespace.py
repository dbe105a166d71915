"""A program that runs a command in a mount namespace, with folders at paths such as /opt/ml.

`python -m headrace.core.process.mount_namespace --places JSON -- command...` makes a mount
namespace, bind-mounts each source at its place, and executes the command.
A user who may not mount gets a user namespace that allows it, with the same user and group; root
does not, as it would lose access to other users' files. If PLACE does not exist, the folder above
is replaced by one in memory with the same entries, which is then read-only.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from headrace.core.errors import LaunchError
from headrace.core.process.parent_death import (
    become,
    die_with_parent,
    read_wrapper_arguments,
    wrapper_command,
)
from headrace.core.process.process_kill import run_within

MOUNT_FAILED = 125
"""The exit code if a mount fails."""
# <linux/sched.h> and <linux/mount.h>
_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_DETACH = 0x2
_ROOT = Path("/")
_LIBC = ctypes.CDLL(None, use_errno=True)
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # <asm/unistd.h>: glibc has no function for it
_TIMEOUT_S = 30.0
_BIND, _ALL_BELOW, _PRIVATE, _REMOUNT, _READ_ONLY = 0x1000, 0x4000, 0x40000, 0x20, 0x1
_UNBINDABLE = 0x20000


def namespace_command(python: str, places: dict[str, str], command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command with sources mounted at places.

    Places are sources by mount point, all absolute paths.
    """
    options = {"places": json.dumps(places)}
    return wrapper_command(python, "headrace.core.process.mount_namespace", options, command)


def can_bind_mount(place: str) -> bool:
    """Return whether this process may start a program with another folder mounted at a path."""
    command = namespace_command(sys.executable, {place: "/"}, ["true"])
    try:
        return run_within(command, _TIMEOUT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def exec_in_namespace(arguments: Sequence[str]) -> NoReturn:
    """Mount the sources, and execute the command."""
    options, command = read_wrapper_arguments(arguments)
    places: dict[str, str] = json.loads(options["places"])
    parent = os.getppid()
    here = _ROOT
    with suppress(OSError):  # the working folder was removed
        here = Path.cwd()
    try:
        _make_namespaces()
        die_with_parent(parent)  # a new user namespace clears the setting
        # Opened before any mount, as that may cover a source.
        sources = {place: _OpenPath(Path(source).resolve()) for place, source in places.items()}
        made = {_bind(source, Path(place)) for place, source in sources.items()}
        if _ROOT in made:
            _detach_old_root()
            os.chdir(here)
        for above in filter(None, made):
            _mount(None, str(above), None, _REMOUNT | _READ_ONLY)
    except (OSError, LaunchError) as error:
        sys.stderr.write(f"headrace: {', '.join(places)} cannot be placed: {error}\n")
        sys.exit(MOUNT_FAILED)
    become(command)


def _make_namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_MOUNTS) != 0:
        if user == 0 or _LIBC.unshare(_NEW_USERS | _NEW_MOUNTS) != 0:
            raise _last_error()
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny")  # else the kernel rejects gid_map
        (own / "uid_map").write_text(f"{user} {user} 1")
        (own / "gid_map").write_text(f"{group} {group} 1")
    _mount(None, "/", None, _ALL_BELOW | _PRIVATE)


def _bind(source: _OpenPath, place: Path) -> Path | None:
    """Bind a source at a place; return the folder that was replaced for that, or None."""
    above = None if place.exists() else _make_mount_point(place, is_folder=source.is_folder)
    source.bind(place)
    return above


def _make_mount_point(place: Path, *, is_folder: bool) -> Path:
    """Make a mount point in memory; return the folder that was replaced for it."""
    above = place.parent
    while not above.exists():
        above = above.parent
    entries = {entry.name: _OpenPath(entry) for entry in above.iterdir()}
    mode = stat.S_IMODE(above.stat().st_mode)
    is_root = above == _ROOT
    # The root cannot be covered by a mount: a new one is made elsewhere, and pivoted to.
    new_folder = next(filter(_is_plain_folder, above.iterdir())) if is_root else above
    _mount("tmpfs", str(new_folder), "tmpfs", 0)
    # Else the folder that the new root covers is bound with that root on top of it.
    _mount(None, str(new_folder), None, _UNBINDABLE)
    for name, entry in entries.items():
        entry.recreate_at(new_folder / name)
    _mount(None, str(new_folder), None, _PRIVATE)
    new_folder.chmod(mode)
    if is_root:
        _pivot_root(new_folder)
    if is_folder:
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return above


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.name != "proc"  # mounts use /proc


def _pivot_root(folder: Path) -> None:
    """Make a mounted folder the root; see pivot_root(2), 'pivot_root(".", ".")'.

    The old root stays mounted until `_detach_old_root`, so that its files can be bound.
    """
    os.chdir(folder)
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise LaunchError(f"pivot_root has no known number on {os.uname().machine}")
    if _LIBC.syscall(number, b".", b".") != 0:
        raise _last_error("/")


def _detach_old_root() -> None:
    os.chdir("/")
    if _LIBC.umount2(b".", _DETACH) != 0:
        raise _last_error("/")


class _OpenPath:
    """A file or folder, held open while mounts may cover its path."""

    def __init__(self, path: Path) -> None:
        self._link = path.readlink() if path.is_symlink() else None
        self.is_folder = path.is_dir()
        self._descriptor = -1
        if self._link is None:
            self._descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)

    def recreate_at(self, path: Path) -> None:
        if self._link is not None:
            path.symlink_to(self._link)
            return
        if self.is_folder:
            path.mkdir()
        else:
            path.touch()
        self.bind(path)

    def bind(self, path: Path) -> None:
        """Bind-mount it at an existing path."""
        _mount(f"/proc/self/fd/{self._descriptor}", str(path), None, _BIND | _ALL_BELOW)
        os.close(self._descriptor)


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _LIBC.mount(*encoded, ctypes.c_ulong(flags), None) != 0:
        raise _last_error(target)


def _last_error(path: str | None = None) -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


if __name__ == "__main__":
    exec_in_namespace(sys.argv[1:])
