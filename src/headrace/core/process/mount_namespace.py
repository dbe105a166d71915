"""A program in a mount namespace of its own, with folders of the job at paths such as /opt/ml.

`python -m headrace.core.process.mount_namespace --at PLACE SOURCE [--at PLACE SOURCE ...] --
command...` makes a mount namespace, binds each SOURCE at its PLACE there, and replaces itself by
the command. Who may not mount gets a user namespace in which that is allowed, with the same user
and group; not root, who would lose what is other users'. Where PLACE does not exist, its folder is
made anew in memory, with all that it holds, and nothing else can be made in it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from headrace.core.errors import LaunchError
from headrace.core.process.parent_death import die_with_parent

MOUNT_FAILED = 125
"""The exit code where the places cannot be had."""
# <linux/sched.h> and <linux/mount.h>
_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_DETACH = 0x2
_ROOT = Path("/")
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # <asm/unistd.h>: glibc has no function for it
_TIMEOUT_S = 30.0
_BIND, _ALL_BELOW, _PRIVATE, _REMOUNT, _READ_ONLY = 0x1000, 0x4000, 0x40000, 0x20, 0x1


def namespace_command(python: str, places: dict[str, str], command: Sequence[str]) -> list[str]:
    """Return the command line that starts a command which sees sources at places.

    Args:
        python: The interpreter that runs this file; needs Headrace, and nothing else.
        places: Sources, by the place where each is seen; all of them absolute paths.
        command: What is to run.
    """
    at = [part for place, source in places.items() for part in ("--at", place, source)]
    return [python, "-P", "-m", "headrace.core.process.mount_namespace", *at, "--", *command]


def can_bind_mount(place: str) -> bool:
    """Return whether a program that this process starts may see something else at a place."""
    command = namespace_command(sys.executable, {place: "/"}, ["true"])
    try:
        ended = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def exec_in_namespace(arguments: Sequence[str]) -> NoReturn:
    """Put everything in its place and become the command."""
    end = arguments.index("--")
    places = {arguments[at + 1]: arguments[at + 2] for at in range(0, end, 3)}
    command = list(arguments[end + 1 :])
    parent = os.getppid()
    here = _ROOT
    with suppress(OSError):  # the working folder was removed
        here = Path.cwd()
    try:
        _make_namespaces()
        die_with_parent(parent)  # which a new user namespace makes forgotten
        # Before anything is bound: a source may lie where something else is seen then.
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
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    try:
        os.execvp(command[0], command)  # noqa: S606  (becoming the command is the purpose)
    except OSError as error:
        sys.stderr.write(f"headrace: {command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _make_namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    if not _unshare(_NEW_MOUNTS):
        if user == 0 or not _unshare(_NEW_USERS | _NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny")  # else the kernel takes no gid_map
        (own / "uid_map").write_text(f"{user} {user} 1")
        (own / "gid_map").write_text(f"{group} {group} 1")
    _mount(None, "/", None, _ALL_BELOW | _PRIVATE)


def _unshare(flags: int) -> bool:
    return bool(ctypes.CDLL(None, use_errno=True).unshare(flags) == 0)


def _bind(source: _OpenPath, place: Path) -> Path | None:
    """Bind a source at a place; return the folder that was made anew for that, where one was."""
    above = None if place.exists() else _make_mount_point(place, is_folder=source.is_folder)
    source.bind(place)
    return above


def _make_mount_point(place: Path, *, is_folder: bool) -> Path:
    """Make a place to bind at, in memory: nothing is written to the folder above it, returned."""
    above = place.parent
    while not above.exists():
        above = above.parent
    kept = {entry.name: _OpenPath(entry) for entry in above.iterdir()}
    mode = stat.S_IMODE(above.stat().st_mode)
    is_root = above == _ROOT
    # Nothing can be mounted over the root: another one is made anywhere, and takes its place.
    made = next(filter(_is_plain_folder, above.iterdir())) if is_root else above
    _mount("tmpfs", str(made), "tmpfs", 0)
    for name, entry in kept.items():
        entry.recreate_at(made / name)
    made.chmod(mode)
    if is_root:
        _pivot_root(made)
    if is_folder:
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return above


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.name != "proc"  # which binding needs


def _pivot_root(folder: Path) -> None:
    """Make a folder that is a mount the root; see pivot_root(2), 'pivot_root(".", ".")'.

    The old one stays above it until `_detach_old_root`: what lies there can still be bound.
    """
    os.chdir(folder)
    libc = ctypes.CDLL(None, use_errno=True)
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise LaunchError(f"pivot_root has no known number on {os.uname().machine}")
    if libc.syscall(number, b".", b".") != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "/")


def _detach_old_root() -> None:
    os.chdir("/")
    if ctypes.CDLL(None, use_errno=True).umount2(b".", _DETACH) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "/")


class _OpenPath:
    """A file or folder, held while something may be mounted over where it is."""

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
        """Have it be seen at a path that exists."""
        _mount(f"/proc/self/fd/{self._descriptor}", str(path), None, _BIND | _ALL_BELOW)
        os.close(self._descriptor)


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if libc.mount(*encoded, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


if __name__ == "__main__":
    exec_in_namespace(sys.argv[1:])
