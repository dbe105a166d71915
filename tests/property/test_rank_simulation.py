"""Coupled ranks in the what-if simulation, held against one that goes from event to event."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.whatif.simulation import BatchCosts, Pipeline, delivery_times, simulate
from headrace.observe.whatif.tables import Floats

COUNTS = st.integers(1, 4)


def costs(service: Floats, consume: Floats, sync: float) -> BatchCosts:
    """Batches that take no core."""
    nothing = np.zeros_like(service)
    return BatchCosts(
        service_ns=service, service_cpu_ns=nothing, demand_ns=nothing, consume_ns=consume,
        consume_cpu_ns=nothing, sync_ns=np.full_like(service, sync),
    )  # fmt: skip


def deliveries(
    pipeline: Pipeline, service: Floats, consume: Floats, sync: float
) -> list[list[float]]:
    """Return when each batch comes, rank by rank; rows are the ranks of one job."""
    ranks, batches = service.shape
    free = [[0.0] * max(pipeline.workers, 1) for _ in range(ranks)]
    delivered: list[list[float]] = [[] for _ in range(ranks)]
    ready = [0.0] * ranks
    for batch in range(batches):
        for rank, workers in enumerate(free):
            if pipeline.workers == 0:
                came = ready[rank] + service[rank, batch]
            else:
                turn = batch % pipeline.workers
                if pipeline.takes_next:
                    turn = workers.index(min(workers))
                early = batch < pipeline.depth
                issued = 0.0 if early else delivered[rank][batch - pipeline.depth]
                workers[turn] = max(workers[turn], issued) + service[rank, batch]
                came = max(workers[turn], ready[rank])
            delivered[rank].append(came)
            ready[rank] = came + consume[rank, batch]
        if (batch + 1) % pipeline.batches_a_step == 0:
            ready = [max(ready) + sync] * ranks
    return delivered


@given(
    workers=st.integers(0, 3), prefetch=COUNTS, ranks=st.integers(2, 4), batches_a_step=COUNTS,
    takes_next=st.booleans(), seed=st.integers(0, 2**32 - 1), sync=st.floats(0, 50),
)  # fmt: skip
def test_ranks_step_together(
    workers: int, prefetch: int, ranks: int, batches_a_step: int, seed: int, sync: float, *,
    takes_next: bool,
):  # fmt: skip
    random = np.random.default_rng(seed)
    shape = ranks, 12 * batches_a_step
    service, consume = random.exponential(100, shape), random.exponential(60, shape)
    pipeline = Pipeline(
        workers=workers, prefetch_factor=prefetch, coupled_ranks=ranks,
        batches_a_step=batches_a_step, takes_next=takes_next,
    )  # fmt: skip
    found, _ = delivery_times(pipeline, service, service, consume, np.full(shape, sync))
    np.testing.assert_allclose(found, deliveries(pipeline, service, consume, sync))
    # All of a rank's time is its own, waiting for others with sync, or waiting for data.
    result = simulate(pipeline, costs(service, consume, sync))
    assert (result.consume_ns + result.joined_ns >= result.consume_ns).all()
    if batches_a_step == 1:
        ends = found + consume
        together = ends.max(axis=0) + sync
        begin = min(max(pipeline.depth, 12 // 5), 6)
        joined = (together - ends)[:, begin:].mean(axis=1)
        np.testing.assert_allclose(result.joined_ns, joined)


@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(0, 3), takes_next=st.booleans())
def test_one_rank_is_as_without_others(seed: int, workers: int, *, takes_next: bool):
    random = np.random.default_rng(seed)
    service, consume = random.exponential(100, (3, 20)), random.exponential(60, (3, 20))
    alone = Pipeline(workers=workers, takes_next=takes_next)
    found = simulate(alone, costs(service, consume, 0.0))
    # Ranks that have the same of everything never wait for each other.
    twice = Pipeline(workers=workers, takes_next=takes_next, coupled_ranks=2)
    both = simulate(twice, costs(service.repeat(2, axis=0), consume.repeat(2, axis=0), 0.0))
    np.testing.assert_allclose(both.period_ns[::2], found.period_ns)
    np.testing.assert_allclose(both.joined_ns, 0.0, atol=1e-9)


@given(seed=st.integers(0, 2**32 - 1), sync=st.floats(0, 50))
def test_among_more_ranks_no_batch_comes_earlier(seed: int, sync: float):
    random = np.random.default_rng(seed)
    service, consume = random.exponential(80, (8, 40)), random.exponential(60, (8, 40))
    before = np.zeros((8, 40))
    for ranks in (1, 2, 4, 8):
        pipeline = Pipeline(workers=2, coupled_ranks=ranks)
        came, _ = delivery_times(pipeline, service, service, consume, np.full((8, 40), sync))
        assert (came >= before - 1e-6).all()
        before = came
