"""How far a sweep came, in its folder: one process at a time, and no finished run again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import LaunchError, UsageError
from headrace.core.file_lock import lock_within, open_lock_file
from headrace.core.files import write_text_atomically
from headrace.jobs.sweep.sweep_file import Sweep, SweepRun
from headrace.records.run_folder import Attempt, RunFolder

STATE_FILE = "sweep.json"
_LOCK_FILE = "sweep.json.held"
_LOCK_S = 5.0  # a killed process may take some time to end
_FORMAT = 1
_FOLDER_MODE = 0o700  # as of a run's folder


@dataclass(frozen=True, slots=True)
class SweepState:
    """The state of a sweep, locked until this process ends.

    Attributes:
        runs: The runs folder.
        folder: The sweep's own, in it.
    """

    runs: Path
    folder: Path
    _digests: dict[str, str]

    @classmethod
    def open(cls, sweep: Sweep, runs: Path) -> SweepState:
        """Open it, made if needed.

        Raises UsageError (another process has it, a run of one of the names was made in another
        way, or the folder cannot be made).
        """
        folder = runs / sweep.name
        if (folder / "run.json").exists():
            raise UsageError(f"{folder} is a run's folder: give the sweep another name.")
        try:
            runs.mkdir(parents=True, exist_ok=True)
            folder.mkdir(_FOLDER_MODE, exist_ok=True)
            descriptor = open_lock_file(folder / _LOCK_FILE)  # closed as the process ends
        except OSError as error:
            raise UsageError(f"The sweep's folder cannot be made: {error}.") from error
        if not lock_within(descriptor, _LOCK_S, required=False):
            os.close(descriptor)
            raise UsageError(f"Another headrace sweep runs {sweep.name}, in {folder}.")
        state = cls(runs, folder, dict(_read_digests(folder / STATE_FILE)))
        for run in sweep.runs:
            state._check(run)
        return state

    def finished(self, run: SweepRun) -> Attempt | None:
        """Return the attempt in which a run ended well; None: it has not."""
        last = self._last_attempt(run)
        return last if last is not None and last.exit_code == 0 else None

    def begin(self, run: SweepRun) -> None:
        """Write down that a run is this sweep's, before it starts; raises LaunchError."""
        self._digests[run.name] = run.digest
        text = json.dumps({"format": _FORMAT, "runs": self._digests}, indent=2) + "\n"
        try:
            write_text_atomically(self.folder / STATE_FILE, text)
        except OSError as error:
            raise LaunchError(f"{self.folder / STATE_FILE} cannot be written: {error}.") from error

    def _last_attempt(self, run: SweepRun) -> Attempt | None:
        attempts = RunFolder(self.runs / run.name).attempts()
        return attempts[-1] if attempts else None

    def _check(self, run: SweepRun) -> None:
        """Raise UsageError where a run's name is another run's, or it was made in another way."""
        if self._last_attempt(run) is None:
            return
        path, digest = self.runs / run.name, self._digests.get(run.name)
        if digest is None:
            raise UsageError(f"{path} is a run of its own: give the sweep another name.")
        if digest != run.digest:
            raise UsageError(
                f"{path} was made with other settings than the sweep has now. Give the sweep "
                "another name, or remove the run, and it is made anew."
            )


def _read_digests(file: Path) -> Mapping[str, str]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): str(digest) for name, digest in found["runs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{file} cannot be read: {error}. Give the sweep another name, or remove its runs."
        ) from error
