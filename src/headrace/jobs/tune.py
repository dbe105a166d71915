"""The trials of `headrace tune`: measured remedies that need no change of the script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError, RecordsError, UsageError
from headrace.core.overrides import Override
from headrace.jobs.cli_args import direct_job
from headrace.jobs.job_file import is_job_file, read_job_file
from headrace.jobs.spec import JobSpec
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Diagnosis, Remedy
from headrace.observe.whatif.comparison import (
    CheckedPrediction,
    Comparison,
    compare,
    write_checked_prediction,
)
from headrace.records.reader import open_records

_WARM_UP_STEPS = 12
_WORTH_TRYING = 1.05
_MOST_TRIALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a tuning."""

    folder: Path
    overrides: tuple[Override, ...]
    diagnosis: Diagnosis
    # The remedy that was added; None for the first run, of the unchanged script
    remedy: Remedy | None = None
    measured: Comparison | None = None  # the comparison with the run before; None for the first run

    @property
    def helped(self) -> bool:
        """Whether the run was faster than the one before, beyond noise."""
        return self.measured is not None and self.measured.differ and self.measured.speedup > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTrial:
    """A run of a tuning that failed with a remedy, where the script alone did not fail."""

    folder: Path
    remedy: Remedy
    reason: str  # how the run ended


def tune(
    argv: Sequence[str], folder: Path, *, steps: int, applied: tuple[Override, ...] = ()
) -> Iterator[Trial | FailedTrial]:
    """Run a script for some steps, then again with the best remedy, and so on; yield each run.

    A remedy that helps stays; one that does not help, or fails, is not tried again. It ends when no
    remedy is left that is worth a trial, or after four. The run folders are made in `folder`; the
    steps of each run are counted without warm-up, and the overrides `applied` are those of every
    run.

    Raises UsageError (the command line has flags of `headrace run` that name a run), LaunchError
    (the script failed without any remedy), RecordsError (it takes too few steps for a diagnosis).
    """
    _refuse_run_flags(argv)
    trial = _run(argv, folder / "as-it-is", applied, steps)
    yield trial
    tried: set[tuple[Override, ...]] = set()
    for number in range(1, _MOST_TRIALS + 1):
        remedy = best_remedy(trial.diagnosis, tried)
        if remedy is None:
            return
        tried.add(remedy.overrides)
        name = f"{number}-{'-'.join(f'{each.name}-{each.value}' for each in remedy.overrides)}"
        try:
            next_trial = _with_remedy(argv, folder / name, trial, remedy, steps)
        except (LaunchError, RecordsError) as error:
            yield FailedTrial(folder=folder / name, remedy=remedy, reason=str(error))
            continue
        yield next_trial
        if next_trial.helped:
            trial = next_trial


def _with_remedy(
    argv: Sequence[str], folder: Path, before: Trial, remedy: Remedy, steps: int
) -> Trial:
    """Run the script with one more remedy, and record prediction and measurement."""
    changed = {(each.name, each.place) for each in remedy.overrides}
    kept = [each for each in before.overrides if (each.name, each.place) not in changed]
    run = _run(argv, folder, (*kept, *remedy.overrides), steps)
    measured = compare(open_records(before.folder), open_records(run.folder))
    trial = replace(run, remedy=remedy, measured=measured)
    _record_check(trial)
    return trial


def _refuse_run_flags(argv: Sequence[str]) -> None:
    """Raise UsageError for flags that a tuning sets for its runs itself."""
    job = direct_job(argv)
    if job is None:
        from headrace.jobs.torchrun_args import parse_torchrun_flags  # imports torch

        job = parse_torchrun_flags(argv).spec
    for name in ("run_dir", "runs_dir", "name"):
        if getattr(job.run, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag}: headrace tune names its runs itself; leave it out.")
    if job.recording.overrides:
        raise UsageError("--apply: write it first, headrace tune --apply ..., before torchrun's.")
    _refuse_urls(job)


_URL_FLAGS = {"checkpoint_uri": "--checkpoint-uri", "output_path": "--output-path"}
_URL_KEYS = (*_URL_FLAGS, "checkpoint_s3_uri")


def _refuse_urls(job: JobSpec) -> None:
    """Raise UsageError where the runs would have their checkpoints or outputs at one URL."""
    named = [flag for name, flag in _URL_FLAGS.items() if getattr(job.sync, name) is not None]
    script = job.script.path
    if is_job_file(script):
        keys = read_job_file(Path(script))
        named += [f"{script}: {key}" for key in _URL_KEYS if keys.get(key)]
    if named:
        raise UsageError(
            f"{named[0]}: the runs of a tuning would go on from each other's checkpoints, or "
            "overwrite each other's outputs, and the job itself would find there what they left. "
            "Leave it out."
        )


def best_remedy(
    diagnosis: Diagnosis, tried: Collection[tuple[Override, ...]] = ()
) -> Remedy | None:
    """Return the remedy without code changes that promises most; None: none is worth a trial."""
    remedies = [
        remedy
        for finding in diagnosis.findings
        if not finding.forecast  # a finding about another run
        for remedy in finding.remedies
        if remedy.overrides and (remedy.predicted_speedup or 0.0) >= _WORTH_TRYING
        if remedy.overrides not in tried
    ]
    return max(remedies, key=lambda remedy: remedy.predicted_speedup or 0.0, default=None)


def _run(argv: Sequence[str], folder: Path, overrides: tuple[Override, ...], steps: int) -> Trial:
    applied = [f"--apply={','.join(map(str, overrides))}"] if overrides else []
    command = [sys.executable, "-P", "-m", "headrace.cli.main", "run", f"--run-dir={folder}"]
    result = subprocess.run(
        [*command, *applied, *argv],
        env=env.child_environment({env.STOP_AFTER.name: str(steps + _WARM_UP_STEPS)}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise LaunchError(
            f"The script ended with exit code {result.returncode}; its log is in {folder}.\n"
            f"{result.stderr[-2000:]}"
        )
    return Trial(folder=folder, overrides=overrides, diagnosis=diagnose(open_records(folder)))


def _record_check(trial: Trial) -> None:
    """Record the predicted and the measured effect."""
    remedy, measured = trial.remedy, trial.measured
    assert remedy is not None
    assert measured is not None
    assert remedy.predicted_speedup is not None
    checked = CheckedPrediction(
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
    write_checked_prediction(checked, trial.folder)
