"""The sidecar that sends a run's spool to MLflow while the run goes on, and the rest at its end.

It imports MLflow, which takes a second of a core, with the least priority. Where its input ends
without a last message, the process that logged was killed, and so was the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.decide.experiments.spool import now_ms
from headrace.decide.experiments.spool_sender import SpoolSender

_NICENESS = 19
_EVERY_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LAST_TRIES_S = 10.0  # at the end, for a server that is down; 1 s where it was down before


class _Sender:
    """Sends, and says once that it does not work, and that it does again."""

    def __init__(self, spool: Path) -> None:
        self._sender = SpoolSender(spool)
        self._spool = spool
        self._fault = ""  # why the last try failed

    @property
    def run_id(self) -> str:
        return self._sender.run_id

    @property
    def works(self) -> bool:
        return not self._fault

    def send(self) -> bool:
        """Send what is new; return whether all of it was sent."""
        return self._tried(self._sender.send)

    def end_as_killed(self) -> None:
        if not self._sender.has_ended:
            self._tried(lambda: self._sender.end("KILLED", now_ms()))

    def report_unsent(self) -> None:
        print_status(
            f"{self._spool} holds what MLflow does not have yet; `headrace runs sync` sends it."
        )

    def _tried(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except (HeadraceError, OSError) as error:
            if not self._fault:
                print_status(f"not tracked now, but kept until it can be: {error}")
            self._fault = str(error)
            return False
        if self._fault:
            print_status("tracked again, with all that was kept meanwhile")
        self._fault = ""
        return True


def main(parent: SidecarParent) -> None:
    """Send until the parent says that the run has ended, or has been killed."""
    with suppress(OSError):
        os.nice(_NICENESS)
    sender = _Sender(Path(parent.request["spool"]))
    pause_s = 0.0
    while True:
        if parent.wait(pause_s):
            message = parent.read()
            if message is None:
                break
            if "end" in message:
                _send_the_rest(sender)
                return
            parent.send({"sent": sender.send(), "run_id": sender.run_id})
        is_sent = sender.send()
        pause_s = _EVERY_S if is_sent else min(2 * pause_s + 1, _LONGEST_PAUSE_S)
    if sender.send():
        sender.end_as_killed()


def _send_the_rest(sender: _Sender) -> None:
    deadline = time.monotonic() + (_LAST_TRIES_S if sender.works else 1.0)
    while not sender.send():
        if time.monotonic() > deadline:
            sender.report_unsent()
            return
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    run_sidecar(main, dies_by=None)
