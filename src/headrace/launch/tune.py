"""`headrace tune`: look, apply what helps without editing the script, look again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.core.overrides import Override
from headrace.observe.doctor.diagnose import diagnose
from headrace.observe.doctor.model import Diagnosis, Remedy
from headrace.observe.whatif.backtest import Checked, keep
from headrace.observe.whatif.comparison import Comparison, compare
from headrace.records.reading import open_records

_WARM_UP_STEPS = 12
_WORTH_TRYING = 1.05
_MOST_TRIALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a tuning.

    Attributes:
        folder: The run's folder.
        overrides: What was applied.
        diagnosis: What the doctor says of it.
        remedy: What was applied last; None for the first run, which is as the script stands.
        measured: This run against the one before; None for the first.
    """

    folder: Path
    overrides: tuple[Override, ...]
    diagnosis: Diagnosis
    remedy: Remedy | None = None
    measured: Comparison | None = None


def tune(argv: Sequence[str], folder: Path, *, steps: int) -> Iterator[Trial]:
    """Run a script for some steps, again with the best remedy, and so on; yield each run.

    Ends where no remedy is left that is worth trying, or one made nothing faster.

    Args:
        argv: torchrun's flags, the script and its arguments.
        folder: Where the runs' folders are made.
        steps: Training steps of each run, warm-up apart.

    Raises:
        LaunchError: The script failed.
        RecordsError: It takes too few steps to tell.
    """
    trial = _run(argv, folder / "as-it-is", (), steps)
    yield trial
    for number in range(1, _MOST_TRIALS + 1):
        remedy = best_remedy(trial.diagnosis)
        if remedy is None:
            return
        overrides = _merged(trial.overrides, remedy.overrides)
        name = f"{number}-{'-'.join(f'{each.name}-{each.value}' for each in remedy.overrides)}"
        tried = _run(argv, folder / name, overrides, steps)
        measured = compare(open_records(trial.folder), open_records(tried.folder))
        tried = Trial(
            folder=tried.folder, overrides=overrides, diagnosis=tried.diagnosis,
            remedy=remedy, measured=measured,
        )  # fmt: skip
        _keep(tried)
        yield tried
        if not measured.differ or measured.speedup < 1:
            return
        trial = tried


def best_remedy(diagnosis: Diagnosis) -> Remedy | None:
    """Return the remedy that edits no code and promises most; None where none is worth it."""
    remedies = [
        remedy
        for finding in diagnosis.findings
        if not finding.foretold  # what would help another run
        for remedy in finding.remedies
        if remedy.overrides and (remedy.predicted_speedup or 0.0) >= _WORTH_TRYING
    ]
    return max(remedies, key=lambda remedy: remedy.predicted_speedup or 0.0, default=None)


def _run(argv: Sequence[str], folder: Path, overrides: tuple[Override, ...], steps: int) -> Trial:
    applied = [f"--apply={','.join(map(str, overrides))}"] if overrides else []
    command = [sys.executable, "-P", "-m", "headrace.cli.main", "run", f"--run-dir={folder}"]
    ended = subprocess.run(
        [*command, *applied, *argv],
        env=env.child_environment({env.STOP_AFTER.name: str(steps + _WARM_UP_STEPS)}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise LaunchError(
            f"The script ended with exit code {ended.returncode}; its log is in {folder}.\n"
            f"{ended.stderr[-2000:]}"
        )
    return Trial(folder=folder, overrides=overrides, diagnosis=diagnose(open_records(folder)))


def _merged(before: tuple[Override, ...], more: tuple[Override, ...]) -> tuple[Override, ...]:
    changed = {(each.name, each.place) for each in more}
    kept = [each for each in before if (each.name, each.place) not in changed]
    return (*kept, *more)


def _keep(trial: Trial) -> None:
    """Write down what was predicted and what was measured."""
    remedy, measured = trial.remedy, trial.measured
    assert remedy is not None
    assert measured is not None
    assert remedy.predicted_speedup is not None
    checked = Checked(
        remedy=remedy.name,
        change=remedy.change,
        applied=tuple(map(str, trial.overrides)),
        predicted=remedy.predicted_speedup,
        low=remedy.low or remedy.predicted_speedup,
        high=remedy.high or remedy.predicted_speedup,
        measured=measured.speedup,
        measured_low=measured.low,
        measured_high=measured.high,
    )
    keep(checked, trial.folder)
