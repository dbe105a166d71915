"""The sidecar that sends a run's spool to MLflow while the run goes on, and the rest at its end.

It imports MLflow, which takes a second of a core, with a lower priority. Where its input ends
without a last message, the process that logged was killed, and so was the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.decide.experiments.event_file_importer import EventFileImporter
from headrace.decide.experiments.git_state import git_tags
from headrace.decide.experiments.run_target import RunTarget
from headrace.decide.experiments.spool import FINISHED, Entry, SpoolWriter, now_ms
from headrace.decide.experiments.spool_sender import SpoolInUseError, SpoolSender
from headrace.decide.experiments.tensorboard_log import TensorBoardLog

UNSENT = 3
"""The exit code where MLflow does not have all of the run."""
_NICENESS = 5  # with the least priority, importing MLflow takes minutes on busy cores
_EVERY_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LAST_TRIES_S = 10.0  # at the end, for a server that is down; 1 s where it was down before


class _Sender:
    """Sends, and says once that it does not work, and that it does again.

    Before that, what the script wrote for TensorBoard is copied to the spool; after it, TensorBoard
    gets what the spool holds.
    """

    def __init__(self, spool: Path) -> None:
        self._sender = SpoolSender(spool)
        self._importer: EventFileImporter | None = EventFileImporter(spool)
        self._log: TensorBoardLog | None = None
        self._writes_log = self._sender.target.tensorboard
        self._spool = spool
        self._fault = ""  # why the last try failed

    @property
    def run_id(self) -> str:
        return self._sender.run_id

    @property
    def works(self) -> bool:
        return not self._fault

    def send(self, *, is_last: bool = False) -> bool:
        """Send what is new, or with `is_last` all; return whether all of it was sent."""
        if self._importer is not None:
            try:
                self._importer.copy(is_last=is_last)
            except Exception as error:  # noqa: BLE001 - files of others, read by code of others
                self._importer = None
                print_status(f"what the script writes for TensorBoard is not tracked: {error}")
        is_sent = self._tried(self._sender.send)
        if self._writes_log:
            self._write_log(is_last=is_last)
        return is_sent

    def _write_log(self, *, is_last: bool) -> None:
        try:
            if self._log is None:
                target = self._sender.target
                self._log = TensorBoardLog(self._spool, target.run_name, target.started_ms)
            self._log.write(is_last=is_last)
        except Exception as error:  # noqa: BLE001 - as above
            self._writes_log = False
            print_status(f"TensorBoard gets no event file of the run: {error}")

    def write_what_others_logged(self) -> None:
        """Have TensorBoard show what the script logged by MLflow itself, too."""
        if self._log is None or not self._writes_log:
            return
        try:
            self._log.write_others(self._sender.entries_of_others())
        except Exception as error:  # noqa: BLE001 - as above
            print_status(f"TensorBoard does not get what was logged by MLflow alone: {error}")

    def end_as_killed(self) -> None:
        if not self._sender.has_ended:
            self._tried(lambda: self._sender.end("KILLED", now_ms()))

    def _tried(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except (HeadraceError, OSError, ValueError, TypeError) as error:
            if not self._fault:
                print_status(f"not tracked now, but kept until it can be: {error}")
            self._fault = str(error)
            return False
        if self._fault:
            print_status("tracked again, with all that was kept meanwhile")
        self._fault = ""
        return True


def main(parent: SidecarParent) -> int:
    """Send until the parent says that the run has ended, or has been killed.

    Returns 0, or `UNSENT` where MLflow does not have all of the run.
    """
    with suppress(OSError):
        os.nice(_NICENESS)
    spool = Path(parent.request["spool"])
    sender = _opened(parent, spool)
    if sender is None:
        return UNSENT
    _note_git_state(spool)
    pause_s = 0.0
    while True:
        if parent.wait(pause_s):
            message = parent.read()
            if message is None:
                break
            if _is_last(message, parent, spool):
                return 0 if _sends_the_rest(sender) else UNSENT
            parent.send({"sent": sender.send(), "run_id": sender.run_id})
        is_sent = sender.send()
        pause_s = _EVERY_S if is_sent else min(2 * pause_s + 1, _LONGEST_PAUSE_S)
    if not sender.send(is_last=True):
        return UNSENT
    sender.end_as_killed()
    return 0


def _opened(parent: SidecarParent, spool: Path) -> _Sender | None:
    """Return what sends a spool, once no other process does; None if the run ends before."""
    while True:
        try:
            return _Sender(spool)
        except SpoolInUseError:  # of the attempt before, say, whose server is slow
            if parent.wait(_EVERY_S):
                message = parent.read()
                if message is None or _is_last(message, parent, spool):
                    return None
                parent.send({"sent": False, "run_id": ""})


def _is_last(message: Mapping[str, Any], parent: SidecarParent, spool: Path) -> bool:
    """Return whether a message of the script's is its last one.

    Where its exit code is to say how the run ends, that is waited for, and the end is logged. A
    script that Python has brought to its end, and that a signal or a library ends then, has none.
    """
    if "exit_code_follows" not in message:
        return "end" in message
    status = FINISHED if parent.read_byte() in {None, 0} else "FAILED"
    _log(spool, {"kind": "status", "at_ms": now_ms(), "status": status})
    return True


def _note_git_state(spool: Path) -> None:
    """Log the commit of now: the run may be sent much later."""
    target = RunTarget.readable(spool)
    tags = git_tags(target.git_folder) if target is not None and target.git_folder else {}
    if tags:
        _log(spool, {"kind": "tags", "at_ms": now_ms(), "values": tags})


def _log(spool: Path, entry: Entry) -> None:
    writer = SpoolWriter(spool)
    writer.add(entry)
    writer.close()


def _sends_the_rest(sender: _Sender) -> bool:
    deadline = time.monotonic() + (_LAST_TRIES_S if sender.works else 1.0)
    while not sender.send(is_last=True):
        if time.monotonic() > deadline:
            return False
        time.sleep(_EVERY_S)
    sender.write_what_others_logged()
    return True


if __name__ == "__main__":
    run_sidecar(main, dies_by=None)
