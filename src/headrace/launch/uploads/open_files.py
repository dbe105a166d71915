"""Whether somebody is writing to a file.

The kernel grants a read lease on a file only while nobody has it open, or mapped, for writing; so
asking for one, and giving it back at once, is one call, whoever the writer is. Where the file
system knows no leases, or the file is another user's, /proc is looked through.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR


def is_being_written(path: Path) -> bool:
    """Tell whether a process of this machine has a file open for writing.

    The process that asks must ignore SIGIO: whoever opens the file at this very moment has it sent.

    Raises:
        OSError: The file is gone, or may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        return _is_open_somewhere(os.fstat(descriptor))
    else:
        return False
    finally:
        os.close(descriptor)


def _is_open_somewhere(file: os.stat_result) -> bool:
    own = str(os.getpid())
    for process in os.listdir("/proc"):  # noqa: PTH208  (thousands of them)
        if not process.isdigit() or process == own:
            continue
        with suppress(OSError):  # it has ended, or is another user's
            for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208
                if _writes_to(process, number, file):
                    return True
    return False


def _writes_to(process: str, number: str, file: os.stat_result) -> bool:
    with suppress(OSError):
        there = os.stat(f"/proc/{process}/fd/{number}")  # noqa: PTH116
        if (there.st_dev, there.st_ino) == (file.st_dev, file.st_ino):
            told = Path(f"/proc/{process}/fdinfo/{number}").read_text()
            flags = next(line.split()[1] for line in told.splitlines() if line.startswith("flags"))
            return bool(int(flags, 8) & _WRITING)
    return False
