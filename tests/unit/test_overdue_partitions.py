"""When a partition of an iterable dataset is taken back from an auxiliary host."""

from __future__ import annotations

import pytest

from headrace.data.loader.executors.dispatch import BatchDuration, is_partition_overdue


def pace(usual_s: float | None) -> BatchDuration:
    known = BatchDuration()
    if usual_s is not None:
        known.note(usual_s)
    return known


@pytest.mark.parametrize(
    ("waited_s", "held_up_s", "places", "is_overdue"),
    [
        (30.0, 30.0, 0, False),  # hosts load and open the dataset
        (95.0, 95.0, 0, True),
        (9.0, 9.0, 10, False),
        (12.0, 12.0, 10, True),
        (12.0, 12.0, 1000, False),  # to pass over so many here takes longer
        (112.0, 112.0, 1000, True),
        (2.0, 300.0, 1000, False),  # a little slower than here, all the time
        (2.0, 500.0, 1000, True),
    ],
)
def test_who_waits_does_so_as_long_as_another_begin_would_take(
    waited_s: float, held_up_s: float, places: int, is_overdue: bool
):
    assert is_partition_overdue(waited_s, held_up_s, places, pace(0.1), pace(3.0)) == is_overdue


def test_where_nothing_was_made_here_what_others_take_counts():
    assert not is_partition_overdue(20.0, 20.0, 5, pace(None), pace(3.0))
    assert is_partition_overdue(40.0, 40.0, 5, pace(None), pace(3.0))
    assert is_partition_overdue(11.0, 11.0, 5, pace(None), pace(None))
