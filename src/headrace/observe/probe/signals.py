"""Errors that the script's signal handlers raise: they may come in amid the probe's code.

A handler runs in the main thread, wherever that is: an alarm's, one for a machine that is about to
be taken away, torch's own for a worker that was killed. What it raises is meant for the script.
"""

from __future__ import annotations

import signal
from types import CodeType
from typing import Any


def is_of_a_signal(error: BaseException) -> bool:
    """Whether a signal handler raised the error, or something that it called."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the Python code of a handler: a function, a method, a partial or a callable object."""
    handler = getattr(handler, "func", handler)
    if not hasattr(handler, "__code__") and callable(handler):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
