"""Later sending of what MLflow did not get while runs went on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.decide.experiments.run_target import TARGET_FILE, RunTarget, RunTargetError
from headrace.decide.experiments.sent_state import SentState
from headrace.decide.experiments.spool import SPOOL, now_ms
from headrace.decide.experiments.spool_sender import SpoolInUseError, SpoolSender
from headrace.records.run_folder import RunFolder, may_run_elsewhere, running_launcher


@dataclass(frozen=True, slots=True)
class SyncedRun:
    """What became of a run's spool.

    Attributes:
        sent: Whether MLflow has all of it now.
        fault: Why not.
    """

    name: str
    sent: bool
    fault: str = ""


def unsent_runs(runs: Path) -> list[Path]:
    """Return the folders of the runs that MLflow does not have all of.

    Not of those that go on, nor copies of a folder that is still there: that is the run's.
    """
    return [folder for folder in tracked_folders(runs) if _is_unsent(folder)]


def sync_runs(runs: Path) -> list[SyncedRun]:
    """Send what MLflow does not have of the runs in a folder; those that go on do so themselves."""
    return [_synced(folder) for folder in tracked_folders(runs) if _is_unsent(folder)]


def tracked_folders(runs: Path) -> list[Path]:
    """Return the folders of the runs that are tracked, wherever that is, and sent or not."""
    return [target.parent.parent for target in sorted(runs.glob(f"*/{SPOOL}/{TARGET_FILE}"))]


@contextmanager
def _sender(folder: Path) -> Iterator[SpoolSender]:
    sender = SpoolSender(folder / SPOOL, lock_s=0.0)
    try:
        yield sender
    finally:
        sender.close()


def _is_unsent(folder: Path) -> bool:
    spool = folder / SPOOL
    try:
        target = RunTarget.readable(spool)  # it may be its owner's alone
        if target is not None and target.has_original(spool):
            return False
        sent = SentState.read(spool)  # without a lock, as a folder may be for reading alone
        if sent.is_complete(spool) and (sent.has_ended or _may_go_on(folder)):
            return False
        with _sender(folder) as sender:
            return not sender.is_complete or (not sender.has_ended and not _may_go_on(folder))
    except SpoolInUseError:  # its own process sends it
        return False
    except (HeadraceError, OSError, ValueError, TypeError):  # reported as it is sent
        return True


def _may_go_on(folder: Path) -> bool:
    """Return whether the job of a run runs at this moment, here or where its folder came from."""
    attempts = RunFolder(folder).attempts()
    if not attempts:
        return False
    last = attempts[-1]
    if running_launcher(folder, last.launcher) is not None:
        return True
    return last.ended_s is None and may_run_elsewhere(folder, last.launcher)


def _synced(folder: Path) -> SyncedRun:
    try:
        with _sender(folder) as sender:
            sender.send()
            if not sender.has_ended and not _may_go_on(folder):  # nobody was left to say so
                sender.end("KILLED", now_ms())
    except (RunTargetError, ValueError, TypeError) as error:
        return SyncedRun(folder.name, sent=False, fault=f"its spool cannot be read: {error}")
    except (HeadraceError, OSError) as error:
        return SyncedRun(folder.name, sent=False, fault=str(error))
    return SyncedRun(folder.name, sent=True)
