"""The exit code of this process, which the C library writes to a pipe at the process's very end.

Python does not say it before: the functions of `atexit` run while it stands in a local variable of
the interpreter, and SystemExit, which may be raised anywhere, passes no hook.
"""

from __future__ import annotations

import ctypes
import os

_UNBUFFERED = 2  # _IONBF of stdio.h


def write_exit_code_at_end(descriptor: int) -> bool:
    """Have this process's exit code written to a pipe, as one byte, once Python has ended.

    Nothing is written where a signal or `os._exit` ends the process. False: it cannot be, as the C
    library has no function for that (musl's).
    """
    libc = ctypes.CDLL(None)
    try:
        on_exit, fputc, fdopen = libc.on_exit, libc.fputc, libc.fdopen
    except AttributeError:
        return False
    fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(fdopen(os.dup(descriptor), b"w"))
    if not stream:
        return False
    libc.setvbuf(stream, None, _UNBUFFERED, ctypes.c_size_t(0))
    # It calls fputc(exit code, stream): Python's own functions cannot be called any more then.
    return bool(on_exit(ctypes.cast(fputc, ctypes.c_void_p), stream) == 0)
