"""One install at a time in one Python environment, and once for each job.

Emulated hosts share an environment, and so do hosts whose home is a network disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FILE = ".headrace-requirements"
_LOOK_EVERY_S = 0.2


class EnvironmentTurn:
    """This process's turn; what it notes, the next one finds.

    Args:
        descriptor: Of the locked file; None: no folder of the environment may be written.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def installed_by(self, job: str) -> list[str] | None:
        """Return what the last install here added, where it was this job's; else None.

        Args:
            job: Its key.
        """
        if self._descriptor is None:
            return None
        with suppress(ValueError, KeyError, TypeError):  # nobody has noted anything, or not all
            noted = json.loads(os.pread(self._descriptor, 1 << 20, 0))
            if (noted["job"], noted["image"]) == (job, _image()):
                return [str(each) for each in noted["installed"]]
        return None

    def note(self, job: str, installed: list[str]) -> None:
        """Note what was installed, for others of the same job."""
        if self._descriptor is None:
            return
        with suppress(OSError):  # a full disk: the next one asks pip again
            os.ftruncate(self._descriptor, 0)
            noted = {"job": job, "image": _image(), "installed": installed}
            os.pwrite(self._descriptor, json.dumps(noted).encode(), 0)


@contextmanager
def environment_turn(pause: Callable[[float], None]) -> Iterator[EnvironmentTurn]:
    """Keep others from installing into this interpreter's environment meanwhile.

    Args:
        pause: Waits so many seconds; what it raises ends the wait for the turn.
    """
    descriptor = _opened()
    try:
        while descriptor is not None and not _is_locked(descriptor):
            pause(_LOOK_EVERY_S)
        yield EnvironmentTurn(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _image() -> list[str | int]:
    """Return what tells this interpreter from one of another image with the same home.

    Two hosts may see one environment by different devices: then pip is asked once more.
    """
    prefix, program = Path(sys.prefix).stat(), Path(sys.executable).stat()
    return [
        sys.version, sys.prefix, prefix.st_dev, prefix.st_ino, program.st_dev, program.st_ino,
        program.st_mtime_ns,
    ]  # fmt: skip


def _opened() -> int | None:
    # Where pip may not write to the first, it installs into the second.
    for folder in (sysconfig.get_path("purelib"), site.getusersitepackages()):
        with suppress(OSError):
            Path(folder).mkdir(parents=True, exist_ok=True)
            return os.open(Path(folder) / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    return None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        return True
    return True
