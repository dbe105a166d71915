"""Every nanosecond of a rank belongs to one phase of one row, whatever the script does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.probe.step_clock import StepClock
from headrace.observe.probe.step_segments import DeviceCopyCounts, RowKind, Segment


class Watch:
    """A clock that moves on by one more nanosecond than before at each look."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.looks = 0

    def look(self) -> int:
        self.looks += 1
        self.now_ns += self.looks
        return self.now_ns


def fetch(clock: StepClock, watch: Watch, loader: int, *, ended: bool, grad: bool = True) -> None:
    clock.fetch_began(loader, watch.look(), grad=grad)
    clock.fetch_ended(watch.look(), 4, ended=ended)


def backward(clock: StepClock, watch: Watch) -> None:
    clock.backward_began(watch.look())
    clock.backward_ended(watch.look())


def optimize(clock: StepClock, watch: Watch, optimizer: int) -> None:
    clock.optimizer_began(optimizer, watch.look())
    clock.optimizer_ended(optimizer, watch.look())


def iterate(clock: StepClock, watch: Watch, loader: int) -> None:
    clock.iterator_began(loader, watch.look(), grad=True)
    clock.iterator_ended(watch.look())


def fail(clock: StepClock, watch: Watch, loader: int) -> None:
    clock.fetch_began(loader, watch.look(), grad=True)
    clock.fetch_failed(watch.look())


def copy(clock: StepClock, watch: Watch) -> None:
    clock.within_began("copy", watch.look())
    clock.within_ended(watch.look(), DeviceCopyCounts(1))


ACTIONS = {
    "fetch 0": lambda clock, watch: fetch(clock, watch, 0, ended=False),
    "fetch 1": lambda clock, watch: fetch(clock, watch, 1, ended=False),
    "evaluate 1": lambda clock, watch: fetch(clock, watch, 1, ended=False, grad=False),
    "end 0": lambda clock, watch: fetch(clock, watch, 0, ended=True),
    "fail 0": lambda clock, watch: fail(clock, watch, 0),
    "iterate 0": lambda clock, watch: iterate(clock, watch, 0),
    "iterate 1": lambda clock, watch: iterate(clock, watch, 1),
    "copy": copy,
    "wait begins": lambda clock, watch: clock.within_began("sync", watch.look()),
    "wait ends": lambda clock, watch: clock.within_ended(watch.look()),
    "batch awaited": lambda clock, watch: clock.collective_began(watch.look(), brings_data=True),
    "gradients shared": lambda clock, watch: clock.collective_began(
        watch.look(), brings_data=False
    ),
    "batch sent": lambda clock, watch: clock.collective_ended(watch.look()),
    "backward": backward,
    "optimize 7": lambda clock, watch: optimize(clock, watch, 7),
    "optimize 8": lambda clock, watch: optimize(clock, watch, 8),
}


@given(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=200))
def test_no_time_is_lost_and_none_is_counted_twice(actions: list[str]):
    rows: list[tuple[RowKind, int, Segment]] = []
    clock, watch = StepClock(lambda *row: rows.append(row)), Watch()
    clock.fetch_began(0, 0, grad=True)
    clock.fetch_ended(0, 4, ended=False)
    for action in actions:
        ACTIONS[action](clock, watch)
    clock.close(watch.look())
    assert sum(segment.wall_ns for _, _, segment in rows) == watch.now_ns
    assert all(spent >= 0 for _, _, segment in rows for spent in segment.phases_ns.values())
    fetched = 1 + sum(action in {"fetch 0", "fetch 1", "evaluate 1"} for action in actions)
    assert sum(segment.samples for _, _, segment in rows) == 4 * fetched
    # Where a step has batches of two loaders, it counts those of the one that was waited for.
    assert all(0 <= 4 * segment.batches <= segment.samples for _, _, segment in rows)
    assert all(bool(segment.batches) == bool(segment.samples) for _, _, segment in rows)
    if not {"fetch 1", "evaluate 1"} & set(actions):
        assert sum(segment.batches for _, _, segment in rows) == fetched
    assert sum(segment.copies.count for _, _, segment in rows) == actions.count("copy")
    assert all(sum(segment.times_ns()) == segment.wall_ns for _, _, segment in rows)
    for kind in ("train", "eval", "between"):
        numbers = [number for each, number, _ in rows if each == kind]
        assert numbers == list(range(len(numbers)))


@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(1, 90)), max_size=60))
def test_what_a_row_is_does_not_depend_on_times(actions: list[tuple[str, int]]):
    """The device's clock has others, and numbers its rows as the host's."""
    rows: dict[int, list[tuple[RowKind, int, int, int]]] = {0: [], 1: []}
    for varies, emitted in rows.items():
        clock, watch = StepClock(lambda kind, number, row, to=emitted: to.append(
            (kind, number, row.samples, row.backwards))), Watch()  # fmt: skip
        iterate(clock, watch, 0)
        for action, times in actions:
            for _ in range(times if action in {"fetch 0", "fetch 1", "backward"} else 1):
                watch.looks *= varies  # each look is one nanosecond after the one before
                ACTIONS[action](clock, watch)
        clock.close(watch.look())
    assert rows[0] == rows[1]


@given(
    st.lists(st.sampled_from(sorted(ACTIONS)), max_size=50),
    st.sampled_from(["ends", "iterates", "evaluates"]),
    st.sampled_from([1, 1_000_000]),
)
def test_what_follows_a_loop_is_in_no_step(actions: list[str], then: str, after_ns: int):
    rows: list[tuple[RowKind, int, Segment]] = []
    clock, watch = StepClock(lambda *row: rows.append(row)), Watch()
    iterate(clock, watch, 0)
    for action in actions:
        ACTIONS[action](clock, watch)
    fetch(clock, watch, 0, ended=False)
    fetch(clock, watch, 0, ended=False)
    backward(clock, watch)
    optimize(clock, watch, 7)
    worked_ns = watch.now_ns
    watch.now_ns += after_ns
    if then == "iterates":
        iterate(clock, watch, 0)
    if then == "evaluates":
        iterate(clock, watch, 2)
        fetch(clock, watch, 2, ended=False, grad=False)
    clock.close(watch.look())
    before = [segment for _, _, segment in rows if segment.start_ns < worked_ns]
    assert sum(segment.wall_ns for segment in before) == worked_ns - 1  # the first look is at 1
    assert all(kind != "train" for kind, _, segment in rows if segment.start_ns >= worked_ns)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([0, 1]), st.booleans(), st.booleans()),
            st.sampled_from(["iterate 0", "iterate 1", "backward", "optimize 7", "optimize 8"]),
        ),
        max_size=60,
    )
)
def test_gradients_may_be_asked_for_as_a_request_ends_if_it_follows_a_step_of_the_same_loader(
    actions: list[str | tuple[int, bool, bool]],
):
    """As the recorder does, in which each fetch is a loader, whether it ends, and gradients."""
    rows: dict[bool, list[tuple[RowKind, int, Segment]]] = {False: [], True: []}
    for asks_late, emitted in rows.items():
        clock, watch = StepClock(lambda *row, to=emitted: to.append(row)), Watch()
        asked, stepped = -1, False
        for action in actions:
            if isinstance(action, str):
                stepped |= action.startswith("optimize")
                asked = -1 if action.startswith("iterate") else asked
                ACTIONS[action](clock, watch)
                continue
            loader, ended, grad = action
            late = asks_late and stepped and loader == asked
            clock.fetch_began(loader, watch.look(), grad=late or grad)
            clock.fetch_ended(watch.look(), 4, ended=ended, grad=not late or grad)
            asked, stepped = loader, False
        clock.close(watch.look())
    assert rows[True] == rows[False]
