"""Calls as another user of the machine, whom permissions of files bind, as root they do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

NOBODY = 65534


@contextmanager
def folder_of_all_users() -> Iterator[Path]:
    """A folder that other users can reach, as they cannot reach a test's own temporary one."""
    with TemporaryDirectory(prefix="headrace-test-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder


def as_other_user(act: Callable[[], str]) -> str:
    """Return what a function returns, or the error that it raises, in a process of another user.

    For a user who is not root it is the same one: tests close folders to their owner, too.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = act()
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said
