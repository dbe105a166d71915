"""How long the proxy waits for a silent host, by what would have to be gone through again."""

from __future__ import annotations

import pytest

from headrace.offload.connection import lost_line, silence_line
from headrace.offload.scheduler import PartitionScheduler


def scheduler_after(*making_s: float) -> PartitionScheduler:
    """Return a scheduler of two partitions whose batches took their host so long, in turn."""
    scheduler = PartitionScheduler()
    scheduler.begin([2, 3])
    scheduler.set_task_limit("one", 2)
    scheduler.assign_all()
    for task, took_s in enumerate(making_s):
        scheduler.add(task, 2 + task % 2)
        (assignment,) = scheduler.assign(0.0)
        scheduler.took(assignment.number, "one", took_s)
        scheduler.arrived(assignment.number, "one", 0.0)
    return scheduler


@pytest.mark.parametrize(
    ("making_s", "silent_s", "message"),
    [
        ((0.1, 0.1), 4, "silent for 3 s; others make what it had; of an iterable dataset they"),
        ((9.0, 1.0, 9.0), 12, ""),
        ((9.0, 1.0, 9.0), 20, "silent for 18 s; others make what it had; of an iterable dataset "),
        ((90.0, 1.0), 70, "first go through 2 batches again"),
    ],
)
def test_a_silent_host_is_waited_for_as_long_as_its_part_would_take_again(
    making_s: tuple[float, ...], silent_s: float, message: str
):
    batches, again_s = scheduler_after(*making_s).again("one")
    line = silence_line(silent_s, again_s)
    assert bool(line) == bool(message)
    assert message in lost_line(line, batches)


def test_who_begins_a_partition_anew_has_gone_through_it_with_its_first_batch():
    scheduler = scheduler_after(1.0, 1.0, 2.0)
    assert scheduler.again("one") == (3, 3.0)
    scheduler.set_task_limit("two", 2)
    scheduler.lose("one")
    assert (scheduler.again("one"), scheduler.again("two")) == ((0, 0.0), (3, 3.0))
    scheduler.add(3, 2)
    (assignment,) = scheduler.assign(0.0)
    scheduler.took(assignment.number, "two", 4.0)
    assert scheduler.again("two") == (4, 4.0)
