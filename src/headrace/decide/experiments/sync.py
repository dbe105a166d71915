"""Later sending of what MLflow did not get while runs went on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.decide.experiments.run_target import TARGET_FILE
from headrace.decide.experiments.spool import SPOOL
from headrace.decide.experiments.spool_sender import SpoolInUseError, SpoolSender


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
    """Return the folders of the runs that MLflow does not have all of, or that go on now."""
    return [folder for folder in _tracked(runs) if _is_unsent(folder)]


def sync_runs(runs: Path) -> list[SyncedRun]:
    """Send what MLflow does not have of the runs in a folder; those that go on do so themselves."""
    return [_synced(folder) for folder in unsent_runs(runs)]


def _tracked(runs: Path) -> list[Path]:
    return [target.parent.parent for target in sorted(runs.glob(f"*/{SPOOL}/{TARGET_FILE}"))]


def _is_unsent(folder: Path) -> bool:
    try:
        sender = SpoolSender(folder / SPOOL, lock_s=0.0)
    except SpoolInUseError:
        return True
    except (OSError, ValueError):  # reported as it is sent
        return True
    try:
        return not sender.run_id or sender.unsent_bytes > 0
    finally:
        sender.close()


def _synced(folder: Path) -> SyncedRun:
    try:
        sender = SpoolSender(folder / SPOOL, lock_s=0.0)
    except SpoolInUseError:
        return SyncedRun(folder.name, sent=False, fault="it goes on, and its own process sends it")
    except (OSError, ValueError) as error:
        return SyncedRun(folder.name, sent=False, fault=f"its spool cannot be read: {error}")
    try:
        sender.send()
    except (HeadraceError, OSError) as error:
        return SyncedRun(folder.name, sent=False, fault=str(error))
    finally:
        sender.close()
    return SyncedRun(folder.name, sent=True)
