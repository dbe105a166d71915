"""Epochs of a run of several attempts, which may begin within one, with other ranks or batches."""

from __future__ import annotations

import pytest

from headrace.decide.cost.run_use import AttemptUse, EpochParts, trained_epochs


def attempt(
    batches: float, longest: float, *, ended: bool = True, samples: float = 8.0
) -> AttemptUse:
    parts = EpochParts(batches=batches, longest=longest, has_ended=ended, samples_a_batch=samples)
    return AttemptUse(seconds=1.0, running=False, failed=False, parts=parts)


@pytest.mark.parametrize(
    ("attempts", "epochs"),
    [
        ([attempt(250, 100)], 2.5),
        ([attempt(150, 100), attempt(50, 50)], 2.0),  # the rest of an epoch, and no more
        ([attempt(60, 60, ended=False), attempt(140, 100)], 2.0),
        ([attempt(60, 60, ended=False), attempt(40, 40)], 100 / 60),  # at most, as far as known
        ([attempt(100, 100), attempt(100, 50, samples=16.0)], 3.0),  # batches of twice the size
        ([attempt(100, 100), attempt(100, 50, samples=0.0)], 2.0),  # which is not known
        ([attempt(100, 100), AttemptUse(seconds=1.0, running=False, failed=True)], 1.0),
        ([attempt(60, 60, ended=False)], 0.0),
        ([], 0.0),
    ],
)
def test_an_epoch_is_the_longest_iteration_of_all_attempts(
    attempts: list[AttemptUse], epochs: float
):
    assert trained_epochs(attempts) == pytest.approx(epochs)
