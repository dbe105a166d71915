"""How fast one run is: its mean step and phases, samples a second, and means of resampled steps.

Consecutive steps are alike, so they are resampled in blocks, together with the steps that other
ranks take at the same time. The same script run twice differs by 2 %, however many steps there are.
A run is read once, however many others it is compared with, and one column at a time: those of a
long run take hundreds of megabytes together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.core.errors import RecordsError
from headrace.observe.whatif.joint_loaders import read_joint_loaders
from headrace.observe.whatif.loaders_in_turn import main_loader
from headrace.observe.whatif.tables import Floats, Ints, Tables, columns
from headrace.observe.whatif.train_steps import TrainSteps
from headrace.records.schema import PHASES

FEWEST_STEPS = 10
FIRST_SEED, OTHER_SEED = 1, 2
"""Of the run that others are compared with, and of those: their means are drawn independently."""
_BLOCK_STEPS = 8
_MOST_BLOCKS = 2000
_RESAMPLES = 2000
_DRAWN_TOGETHER = 100
_RUN_DEVIATION = 0.02 / 1.645 / 2**0.5
"""Standard deviation of a run's speed such that 90 % of pairs of runs differ by less than 2 %."""
_SETTINGS = {
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "batch_size": "batch_size",
    "pinned": "pin_memory",
    "persistent": "persistent_workers",
    "in_order": "in_order",
    "start_method": "start method",
    "kind": "loader",
    "dataset": "dataset",
}
"""Columns of the table `loaders` in which runs may differ, and their names for users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpeed:
    """How fast a run's steps were, without the warm-up; times are of a mean step.

    Attributes:
        steps: That count, over all ranks.
        samples_per_s: Of all ranks together; None if not counted.
        data_wait_share: Of step time, by the accelerator's clock where it is known.
        phases_ms: By phase of `schema.PHASES`, by the script's clock.
        settings: Those of the main loaders, the ranks, and what else it was made with, by name.
        step_means_ms: Means of resampled series of steps, each as long as the original.
        phase_means_ms: The same of each phase.
    """

    steps: int
    step_ms: float
    samples_per_s: float | None
    data_wait_share: float
    phases_ms: Mapping[str, float]
    settings: Mapping[str, str]
    step_means_ms: Floats = field(repr=False)
    phase_means_ms: Mapping[str, Floats] = field(repr=False)


def run_speed(
    tables: Tables, steps: TrainSteps, *, made_with: Mapping[str, str], seed: int = FIRST_SEED
) -> RunSpeed:
    """Return how fast a run is.

    Args:
        tables: Its records.
        steps: Read from them, and enough of them: see `check_steps`.
        made_with: Further settings, by name.
        seed: Of what is drawn: `FIRST_SEED`, or `OTHER_SEED` to compare it with a first run.
    """
    settings = {**_settings(tables, steps), **made_with}
    blocks = _Blocks(steps.rows["step"], seed)
    phases_ms: dict[str, float] = {}
    phase_means_ms: dict[str, Floats] = {}
    for phase in PHASES:
        spent_ns = steps.phase_ns(phase)
        phases_ms[phase] = float(spent_ns.mean() / 1e6)
        phase_means_ms[phase] = blocks.means(spent_ns) / 1e6
    return RunSpeed(
        steps=len(steps),
        step_ms=float(steps.wall_ns.mean() / 1e6),
        samples_per_s=steps.samples_per_s,
        data_wait_share=steps.data_wait_share,
        phases_ms=phases_ms,
        settings=settings,
        step_means_ms=blocks.means(steps.wall_ns) / 1e6,
        phase_means_ms=phase_means_ms,
    )


def check_steps(steps: TrainSteps, run: str) -> None:
    """Raise RecordsError where a run, as its message names it, has too few steps to be compared."""
    if len(steps) < FEWEST_STEPS:
        raise RecordsError(
            f"{run} has {len(steps)} training steps after its warm-up; to compare runs takes "
            f"{FEWEST_STEPS}. Let it train longer."
        )


class _Blocks:
    """Blocks of neighbouring steps, drawn once, so that all phases are those of the same steps.

    Args:
        step: The number of each step; those of several ranks with the same number count as one.
        seed: Of what is drawn.
    """

    def __init__(self, step: Ints, seed: int) -> None:
        counts = np.bincount(step - step.min())
        self._counts = counts[counts > 0]
        self._place = (np.cumsum(counts > 0) - 1)[step - step.min()]
        count = len(self._counts)
        # Long runs have longer blocks, which limits their number.
        self._length = max(min(_BLOCK_STEPS, count), -(-count // _MOST_BLOCKS))
        self._drawn = -(-count // self._length)
        random = np.random.default_rng(seed)
        self._begins = random.integers(0, count, size=(_RESAMPLES, self._drawn))
        self._factors = random.normal(1.0, _RUN_DEVIATION, size=_RESAMPLES)

    def means(self, spent_ns: Floats) -> Floats:
        """Return means of resampled series as long as the original."""
        together = np.bincount(self._place, weights=spent_ns) / self._counts
        sums_before = np.append(0.0, np.cumsum(np.append(together, together[: self._length])))
        of_blocks = sums_before[self._length :] - sums_before[: -self._length]
        sums = [
            of_blocks[self._begins[first : first + _DRAWN_TOGETHER]].sum(axis=1)
            for first in range(0, _RESAMPLES, _DRAWN_TOGETHER)
        ]
        means: Floats = np.concatenate(sums) / (self._drawn * self._length)
        return means * self._factors


def _settings(tables: Tables, steps: TrainSteps) -> dict[str, str]:
    """Return a run's settings, as far as runs may differ in them."""
    settings = {"ranks": str(len(steps.ranks))}
    loaders, main = columns(tables, "loaders"), main_loader(steps)
    batches, fetches = columns(tables, "batches"), columns(tables, "fetches")
    joint = read_joint_loaders(steps, main, loaders, batches, fetches)
    # By their numbers: which of those that a step takes batches of is waited for may change.
    for place, number in enumerate(sorted({main, *(each.number for each in joint)}), start=1):
        rows, which = loaders.having(loader=number), f" of loader {place}" if place > 1 else ""
        if rows.count:
            settings |= {f"{label}{which}": str(rows[name][0]) for name, label in _SETTINGS.items()}
    return settings
