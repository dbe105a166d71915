"""Each sample once, the same batches at every world size, and resuming equals not stopping."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sampling import Plan, PlanState

exact = settings(deadline=None)  # a busy machine is no counterexample


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    num_samples: int
    shard_sizes: tuple[int, ...] | None

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "fingerprint": "f1",
            "num_samples": self.num_samples,
            "shard_sizes": self.shard_sizes,
        }


_SHARDED = (
    st.lists(st.integers(0, 30), min_size=1, max_size=60)
    .filter(any)
    .map(lambda sizes: Dataset(num_samples=sum(sizes), shard_sizes=tuple(sizes)))
)
_LOOSE = st.integers(1, 900).map(lambda count: Dataset(num_samples=count, shard_sizes=None))
DATASETS = _SHARDED | _LOOSE
GLOBAL_BATCHES = st.integers(1, 48)
ORDERS = st.fixed_dictionaries(
    {
        "seed": st.integers(-(2**70), 2**70),
        "epoch": st.integers(0, 5),
        "lanes": st.none() | st.integers(1, 24),
        # Small windows, so that most examples have several in a lane.
        "window": st.none() | st.integers(1, 20),
        "shuffle": st.sampled_from([True, True, True, False]),
    }
)


def worlds_of(global_batch: int, num_samples: int) -> list[int]:
    return [
        world
        for world in range(1, global_batch + 1)
        if global_batch % world == 0 and world <= num_samples
    ]


def batches_of(plan: Plan, world: int) -> list[list[list[int]]]:
    """Return the samples of each batch, of each rank."""
    return [
        [plan.batch(g, rank, world).tolist() for rank in range(world)]
        for g in range(plan.num_batches(world))
    ]


def flat(batches: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    return [sample for batch in batches for part in batch for sample in part]


@exact
@given(dataset=DATASETS, order=ORDERS, global_batch=GLOBAL_BATCHES, data=st.data())
def test_every_sample_comes_once_over_all_ranks(dataset, order, global_batch, data):
    plan = Plan(**dataset.arguments, **order, global_batch=global_batch)
    world = data.draw(st.sampled_from(worlds_of(global_batch, dataset.num_samples)))

    assert sorted(flat(batches_of(plan, world))) == list(range(dataset.num_samples))


@exact
@given(dataset=DATASETS, order=ORDERS, global_batch=GLOBAL_BATCHES, data=st.data())
def test_drop_last_drops_the_tail_and_nothing_else(dataset, order, global_batch, data):
    plan = Plan(**dataset.arguments, **order, global_batch=global_batch, drop_last=True)
    world = data.draw(st.sampled_from(worlds_of(global_batch, dataset.num_samples)))

    batches = batches_of(plan, world)

    assert all(len(part) == global_batch // world for batch in batches for part in batch)
    kept = dataset.num_samples // global_batch * global_batch
    assert sorted(flat(batches)) == sorted(plan.samples(0, kept).tolist())


@exact
@given(dataset=DATASETS, order=ORDERS, global_batch=GLOBAL_BATCHES)
def test_batches_are_the_same_at_every_world_size(dataset, order, global_batch):
    plan = Plan(**dataset.arguments, **order, global_batch=global_batch)
    whole = dataset.num_samples // global_batch
    alone = [plan.batch(g, 0, 1).tolist() for g in range(plan.num_batches(1))]

    for world in worlds_of(global_batch, dataset.num_samples):
        joined = [[s for part in batch for s in part] for batch in batches_of(plan, world)]
        # The last whole batch and the tail may be one batch where there are more ranks than
        # samples in the tail.
        same = whole if plan.num_batches(world) == len(alone) else whole - 1
        assert joined[:same] == alone[:same]
        assert sorted(flat([joined[same:]])) == sorted(flat([alone[same:]]))


@exact
@given(dataset=DATASETS, order=ORDERS, global_batch=GLOBAL_BATCHES, data=st.data())
def test_ranks_make_equal_steps_of_equal_size(dataset, order, global_batch, data):
    plan = Plan(**dataset.arguments, **order, global_batch=global_batch)
    world = data.draw(st.sampled_from(worlds_of(global_batch, dataset.num_samples)))

    sizes = [[len(part) for part in batch] for batch in batches_of(plan, world)]

    assert all(set(batch) == {global_batch // world} for batch in sizes[:-1])
    assert min(sizes[-1]) >= 1
    assert max(sizes[-1]) - min(sizes[-1]) <= 1


@exact
@given(dataset=DATASETS, order=ORDERS, global_batch=GLOBAL_BATCHES)
def test_a_batch_is_a_row_of_positions(dataset, order, global_batch):
    plan = Plan(**dataset.arguments, **order, global_batch=global_batch)

    position = 0
    for g in range(plan.num_batches()):
        after = plan.position_after(g)
        assert sorted(plan.batch(g, 0, 1).tolist()) == sorted(
            plan.samples(position, after).tolist()
        )
        position = after
    assert position == dataset.num_samples


@exact
@given(dataset=DATASETS, order=ORDERS, global_batch=GLOBAL_BATCHES, data=st.data())
def test_resuming_anywhere_equals_not_stopping(dataset, order, global_batch, data):
    drop_last = data.draw(st.booleans())
    plan = Plan(**dataset.arguments, **order, global_batch=global_batch, drop_last=drop_last)
    world = data.draw(st.sampled_from(worlds_of(global_batch, dataset.num_samples)))
    done = data.draw(st.integers(0, plan.num_batches(world)))
    position = plan.position_after(done - 1, world) if done else 0

    state = PlanState.from_dict(json.loads(json.dumps(plan.state_at(position).to_dict())))
    resumed = Plan.resume(state, **dataset.arguments, drop_last=drop_last)
    again = Plan(
        **dataset.arguments, **order, global_batch=global_batch, drop_last=drop_last, start=position
    )

    rest = batches_of(plan, world)[done:]
    assert batches_of(resumed, world) == rest
    assert batches_of(again, world) == rest


@exact
@given(dataset=DATASETS, order=ORDERS, global_batch=GLOBAL_BATCHES, data=st.data())
def test_changing_batch_and_world_on_the_way_keeps_each_sample_once(
    dataset, order, global_batch, data
):
    plan = Plan(**dataset.arguments, **order, global_batch=global_batch)
    seen: list[int] = []
    position = 0
    for _ in range(data.draw(st.integers(1, 4))):
        world = data.draw(st.sampled_from(worlds_of(plan.global_batch, dataset.num_samples)))
        batches = batches_of(plan, world)
        done = data.draw(st.integers(0, len(batches)))
        seen += flat(batches[:done])
        position = plan.position_after(done - 1, world) if done else position
        plan = Plan.resume(
            plan.state_at(position), **dataset.arguments, global_batch=data.draw(GLOBAL_BATCHES)
        )
    seen += flat(batches_of(plan, 1))

    assert sorted(seen) == list(range(dataset.num_samples))


@exact
@given(
    count=st.integers(1, 10**12),
    world=st.integers(1, 64),
    per_rank=st.integers(1, 10**6),
    data=st.data(),
)
def test_the_last_batch_gives_every_rank_a_sample(count, world, per_rank, data):
    plan = Plan(
        fingerprint="f1",
        num_samples=max(count, world),
        shard_sizes=None,
        seed=0,
        epoch=0,
        global_batch=world * per_rank,
        start=data.draw(st.integers(0, count)),
    )

    batches = plan.num_batches(world)

    if batches:
        assert plan.position_after(batches - 1, world) == plan.num_samples
        before = plan.position_after(batches - 2, world) if batches > 1 else plan.start
        assert world <= plan.num_samples - before < plan.global_batch + world
    else:
        left = plan.num_samples - plan.start
        assert left < world
        assert len(plan.check(world)) == bool(left)
