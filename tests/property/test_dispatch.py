"""Whatever workers do, each batch is delivered once and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.data.loader.executors.dispatch import Dispatch

STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "finish", "die", "vanish"]), st.integers(0, 3)),
    max_size=200,
)


@given(batches=st.integers(1, 30), depth=st.integers(1, 6), steps=STEPS)
def test_each_batch_is_delivered_once_in_order(batches: int, depth: int, steps):  # noqa: C901
    dispatch = Dispatch()
    waiting: list[int] = []
    held: dict[int, int] = {}
    submitted = 0
    delivered: list[int] = []

    def give_out() -> None:
        nonlocal submitted
        while submitted < batches and submitted - dispatch.next_delivery < depth:
            waiting.append(dispatch.issue(submitted, submitted % depth).number)
            submitted += 1

    def send_again(lost) -> None:
        waiting.extend(dispatch.issue(task.batch, task.slot).number for task in lost)

    def act(what: str, worker: int) -> None:
        if what == "take" and waiting and worker not in held:
            held[worker] = waiting.pop(0)
        elif what == "finish" and worker in held:
            dispatch.finish(held.pop(worker))
        elif what == "die" and worker in held:
            send_again(dispatch.forget({held.pop(worker)}))
        elif what == "vanish" and waiting:
            waiting.pop(0)  # taken by a worker that died before it could say so
        while (task := dispatch.deliver()) is not None:
            delivered.append(task.batch)
        give_out()

    give_out()
    for what, worker in steps:
        act(what, worker)
    while len(delivered) < batches:  # from here on nobody dies
        unseen = dispatch.unseen(set(held.values()), none_waiting=not waiting)
        send_again(dispatch.forget(unseen))
        for worker in range(4):
            act("take", worker)
            act("finish", worker)
    assert delivered == list(range(batches))
    assert dispatch.settled


def test_a_batch_made_twice_counts_once():
    dispatch = Dispatch()
    first, second = dispatch.issue(0, 0), dispatch.issue(0, 1)
    assert dispatch.finish(second.number) is None
    assert dispatch.deliver() == second
    assert dispatch.finish(first.number) == first
