"""Diagnoses in a thread of its own, seldom enough not to disturb the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.core.errors import HeadraceError
from headrace.report.terminal.state import Told

_PAUSE_S = 5.0
_REST = 19.0
"""So many times what a diagnosis took is rested after it: it gets a twentieth of a core."""


class Verdicts:
    """What the doctor says, made anew in the background.

    Args:
        diagnose: Makes it.
        again: Whether to go on, as the records grow; else it is made once.
    """

    def __init__(self, diagnose: Callable[[], Told], *, again: bool) -> None:
        self._diagnose = diagnose
        self._again = again
        self._latest: Told | None = None
        self._thread: threading.Thread | None = None
        self._due_s = time.monotonic()

    def latest(self) -> Told | None:
        """Return what was said last, None before; begin the next diagnosis where it is due."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._thread is None and time.monotonic() >= self._due_s:
            self._thread = threading.Thread(target=self._make, daemon=True, name="diagnosis")
            self._thread.start()
        return self._latest

    def now(self) -> Told:
        """Diagnose at once and return what is said."""
        self._make()
        assert self._latest is not None
        return self._latest

    def _make(self) -> None:
        began_s = time.monotonic()
        try:
            self._latest = self._diagnose()
        except HeadraceError as error:
            self._latest = Told(sentence=f"There is no verdict: {error}")
        except Exception as error:  # noqa: BLE001 - a fault of the doctor must not end the view
            self._latest = Told(sentence=f"There is no verdict: {type(error).__name__}: {error}")
        ended_s = time.monotonic()
        rest_s = max(_PAUSE_S, _REST * (ended_s - began_s))
        self._due_s = ended_s + rest_s if self._again else float("inf")
