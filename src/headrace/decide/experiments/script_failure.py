"""Whether a script ends by an error, as far as it is known before the functions of `atexit` run.

Python runs these functions without saying how the script ended. Hooks see an error and `sys.exit`.
They do not see SystemExit where it is raised as such, nor anything where somebody has replaced
them: then the frame in which the script began has not come to its own end.
"""

from __future__ import annotations

import sys
import threading
from opcode import opname
from types import FrameType, TracebackType
from typing import NoReturn


class ScriptFailureWatch:
    """Watches for the error, or the exit code, that ends this process's script."""

    def __init__(self) -> None:
        self._noted, self._failed = False, False
        self._outermost = _outermost_frame()
        self._excepthook, self._exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self._note_error, self._note_exit

    @property
    def failed(self) -> bool:
        """Whether the script ends by an error, as far as it is known; of a notebook it is not."""
        return self._failed and not _has_returned(self._outermost)

    @property
    def is_undecided(self) -> bool:
        """Whether something ends the script that no hook has seen: the exit code will say what."""
        return not self._noted and not _has_returned(self._outermost)

    def goes_on(self) -> None:
        """Take note that the script goes on: it has caught what was to end it."""
        self._noted = self._failed = False

    def _note_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # Where code is typed, it goes on after an error.
        self._noted, self._failed = True, not hasattr(sys, "ps1")
        self._excepthook(kind, error, trace)

    def _note_exit(self, code: object = None, /) -> NoReturn:
        self._noted, self._failed = True, not _is_success(code)
        self._exit(code)  # type: ignore[arg-type]  # anything may be given


def ends_well(error: BaseException | None) -> bool:
    """Whether what leaves a block, if anything does, is no failure: an exit with code 0 is none."""
    return error is None or (isinstance(error, SystemExit) and _is_success(error.code))


def _is_success(code: object) -> bool:
    """Whether an exit code is 0 for Python, which prints what is no whole number, and exits by 1.

    Codes may be of any type, also of those that cannot be hashed or compared.
    """
    return code is None or (isinstance(code, int) and code == 0)


def _outermost_frame() -> FrameType | None:
    """Return the frame in which the main thread has begun: of its script, or of what runs that."""
    frames = sys._current_frames()  # noqa: SLF001 - documented
    frame = frames.get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType | None) -> bool:
    """Whether a frame has come to its own end: the last that it did was to return."""
    if frame is None:
        return False
    last = frame.f_lasti
    return last >= 0 and opname[frame.f_code.co_code[last]].startswith("RETURN_")
