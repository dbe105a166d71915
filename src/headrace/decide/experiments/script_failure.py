"""Whether a script ends by an error, known before the functions of `atexit` run.

Python runs the functions of `atexit` without saying how the script ended.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import NoReturn


class ScriptFailureWatch:
    """Watches for the error, or the exit code, that ends this process's script."""

    def __init__(self) -> None:
        self._failed = False
        self._excepthook, self._exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self._note_error, self._note_exit

    @property
    def failed(self) -> bool:
        """Whether the script ends by an error, as far as it is known; of a notebook it is not."""
        return self._failed

    def goes_on(self) -> None:
        """Take note that the script goes on: it has caught what was to end it."""
        self._failed = False

    def _note_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # Where code is typed, it goes on after an error.
        self._failed = not hasattr(sys, "ps1")
        self._excepthook(kind, error, trace)

    def _note_exit(self, code: object = None, /) -> NoReturn:
        self._failed = code not in {None, 0}
        raise SystemExit(code)
