"""What changes of a pipeline may and may not do to it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.observe.whatif.measured_pipeline import EpochBegins, measure
from headrace.observe.whatif.prediction import (
    PipelineChange,
    ScaledRun,
    Simulator,
    scale_ranks,
    with_ranks,
)
from headrace.observe.whatif.simulation import BatchCosts, Pipeline, delivery_times, simulate
from run_tables import Run, play

NOISE = 1.02
"""CPU work is stretched until it fits within half a per cent, and steady states are averages."""
LOADS = st.builds(
    dict,
    service=st.integers(1, 60),
    spread=st.floats(0, 0.6),
    cpu=st.floats(0.05, 1),
    threads=st.floats(1, 4),
    consume=st.integers(1, 40),
    own=st.floats(0, 1),
    seed=st.integers(0, 99),
)
PIPELINES = st.builds(
    Pipeline,
    workers=st.integers(1, 6),
    prefetch_factor=st.integers(1, 3),
    takes_next=st.booleans(),
    cores=st.floats(0.5, 8),
)
RUNS = {
    "starved": Run(workers=2, service_ms=40, cores=4, busy_cores=2.5, worker_cpu=0.6, threads=1.5),
    "full": Run(workers=4, service_ms=60, cores=4, busy_cores=4, worker_cpu=0.9, threads=2),
    "fed": Run(workers=4, service_ms=15, cores=8, busy_cores=3),
    "waiting": Run(workers=2, service_ms=60, worker_cpu=0.1, busy_cores=0.5, read_bytes=10**6),
    "inline": Run(workers=0, service_ms=10, cores=4, busy_cores=1, ready_ms=0),
    "two ranks": Run(workers=2, ranks=2, service_ms=25, cores=4, busy_cores=3),
    "threads": Run(workers=1, service_ms=6, cores=2, busy_cores=0.9, threads=1.8, worker_cpu=0.8),
}
MEASURED = pytest.mark.parametrize("name", RUNS)


def period(pipeline: Pipeline, load: BatchCosts) -> float:
    return float(simulate(pipeline, load).period_ns.mean())


def a_load(
    *, service: int, spread: float, cpu: float, threads: float, consume: int, own: float, seed: int
) -> BatchCosts:
    random = np.random.default_rng(seed)
    made = service * np.maximum(random.normal(1, spread, size=(2, 160)), 0.1)
    used = np.full((2, 160), float(consume))
    return BatchCosts(
        service_ns=made,
        service_cpu_ns=made * cpu,
        demand_ns=made * cpu * threads,
        consume_ns=used,
        consume_cpu_ns=used * own,
    )


@cache
def simulator_of(name: str) -> Simulator:
    measured = measure(play(RUNS[name]))
    assert measured is not None
    return Simulator(measured)


EPOCHS = {"workers": 2, "service_ms": 40, "cores": 8, "busy_cores": 2, "batches": 20, "epochs": 8}


@given(restart_ms=st.floats(5, 900), factor=st.floats(0.2, 1), workers=st.integers(3, 8))
@settings(max_examples=10)
def test_what_an_epochs_begin_takes_stays_whatever_is_changed(restart_ms, factor, workers):
    """The gain is that of the steps between, over all of the time."""
    measured = measure(play(Run(**EPOCHS, restart_ms=restart_ms)))
    assert measured is not None
    begins = measured.begins
    assert begins.starting_ns * 20 / 1e6 == pytest.approx(restart_ms, abs=60)
    for change in (PipelineChange(workers=workers), PipelineChange(service_factor=factor)):
        steady = Simulator(replace(measured, begins=EpochBegins())).predict(change).speedup
        whole = Simulator(measured).predict(change).speedup
        period_ns = float(Simulator(measured).before.period_ns.mean())
        extra_ns = begins.starting_ns + begins.making_ns
        left_ns = begins.starting_ns + begins.making_ns * change.service_factor
        expected = (period_ns + extra_ns) / (period_ns / steady + left_ns)
        assert whole == pytest.approx(expected, rel=0.02)
        assert 1 / NOISE <= whole <= max(steady, 1 / change.service_factor) * NOISE


@pytest.mark.parametrize("batches", [10, 20, 40])
def test_a_loader_that_gets_workers_waits_for_them_at_each_epochs_begin(batches):
    run = Run(workers=0, service_ms=40, cores=8, batches=batches, epochs=160 // batches)
    measured = measure(play(run))
    assert measured is not None
    assert measured.begins.count == pytest.approx(1 / batches, rel=0.1)
    steady = replace(measured, begins=EpochBegins())
    change = PipelineChange(workers=4, start_ns=20e6)
    before, after = (Simulator(each).predict(change).speedup for each in (steady, measured))
    period_ns = float(Simulator(steady).before.period_ns.mean())
    extra_ns = (20e6 + float(measured.service_ns.mean())) / batches
    assert period_ns / after == pytest.approx(period_ns / before + extra_ns, rel=0.02)
    assert Simulator(measured).predict(PipelineChange(service_factor=0.5)).speedup == pytest.approx(
        Simulator(steady).predict(PipelineChange(service_factor=0.5)).speedup, rel=0.02
    )


@given(
    service=st.lists(st.integers(1, 50), min_size=2, max_size=40),
    consume=st.integers(1, 30),
    workers=st.integers(1, 4),
    auxiliary=st.integers(1, 4),
)
def test_auxiliary_workers_never_deliver_later(service, consume, workers, auxiliary):
    def end(auxiliary: int) -> float:
        pipeline = Pipeline(workers=workers, takes_next=True, auxiliary=auxiliary)
        used = np.full((1, len(service)), float(consume))
        made = np.array([service], float)
        return float(delivery_times(pipeline, made, made, used)[0][0, -1])

    assert end(auxiliary) <= end(0) + 1e-9


@settings(deadline=None, max_examples=40)
@given(
    load=LOADS,
    pipeline=PIPELINES,
    auxiliary=st.integers(0, 6),
    more=st.integers(1, 6),
    way=st.floats(0, 2),
)
def test_more_auxiliary_cores_are_never_slower(load, pipeline, auxiliary, more, way):
    costs = replace(a_load(**load), auxiliary_factor=1.0 + way)
    pipeline = replace(pipeline, takes_next=True)
    fewer = period(replace(pipeline, auxiliary=auxiliary), costs)
    then = period(replace(pipeline, auxiliary=auxiliary + more), costs)
    assert then <= fewer * 1.05  # whom a batch goes to is chosen batch by batch


def test_auxiliary_hosts_leave_the_local_cores_to_the_rest():
    costs = a_load(service=40, spread=0.1, cpu=1.0, threads=1, consume=10, own=0.2, seed=1)
    pipeline = Pipeline(workers=2, takes_next=True, cores=2)
    assert simulate(pipeline, costs).wait_share > 0.4
    assert simulate(replace(pipeline, auxiliary=4), costs).wait_share < 0.05


@settings(deadline=None, max_examples=40)
@given(load=LOADS, pipeline=PIPELINES, left=st.floats(0, 1))
def test_less_waiting_is_never_slower(load, pipeline, left):
    costs = a_load(**load)
    waiting = costs.service_ns - costs.service_cpu_ns
    less = replace(costs, service_ns=costs.service_cpu_ns + waiting * left)
    assert period(pipeline, less) <= period(pipeline, costs) * NOISE


@settings(deadline=None, max_examples=40)
@given(load=LOADS, pipeline=PIPELINES, fewer=st.floats(0.1, 1))
def test_fewer_cores_are_never_faster(load, pipeline, fewer):
    costs = a_load(**load)
    scarce = replace(pipeline, cores=pipeline.cores * fewer)
    assert period(pipeline, costs) <= period(scarce, costs) * NOISE


@MEASURED
def test_changing_nothing_gives_nothing(name: str):
    simulator = simulator_of(name)
    now = simulator.measured
    same = PipelineChange(
        workers=now.pipeline.workers,
        ranks=now.ranks,
        capped_share=1.0,
        capped_ns=1e12,
        consume_saved_ns=0.0,
    )
    assert simulator.predict(same).speedup == pytest.approx(1.0)
    assert with_ranks(simulator, 3).predict(PipelineChange(ranks=3)).speedup == pytest.approx(1.0)


@MEASURED
def test_as_many_ranks_as_were_measured_give_what_was_measured(name: str):
    simulator = simulator_of(name)
    measured = simulator.measured
    same = scale_ranks(simulator, measured.ranks, 0.37)
    rate = measured.ranks * 1e9 / measured.period_ns.mean()
    assert same.batches_per_s.value == pytest.approx(rate)
    assert same.wait_share.value == pytest.approx(0.37)


@MEASURED
def test_more_ranks_give_a_rank_no_more_and_the_host_no_less(name: str):
    simulator = simulator_of(name)
    scaled = [
        scale_ranks(simulator, ranks, simulator.before.wait_share) for ranks in (1, 2, 3, 4, 8)
    ]
    for fewer, more in pairwise(scaled):
        assert more.efficiency.value <= fewer.efficiency.value * NOISE
        # Of the host's work only that grows in which threads wait for each other.
        spun = more.spin_factor.value / fewer.spin_factor.value
        assert spun >= 1.0
        assert more.batches_per_s.value >= fewer.batches_per_s.value / spun / NOISE
        if name == "full":  # there the rank's own time grows too, as it waits for a core
            assert waited_ms(more) >= waited_ms(fewer) / NOISE
        else:
            assert more.wait_share.value >= fewer.wait_share.value - 0.02
    for each in scaled:
        for estimate in (each.efficiency, each.wait_share, each.batches_per_s, each.spin_factor):
            assert estimate.low <= estimate.value <= estimate.high


def waited_ms(run: ScaledRun) -> float:
    """Return what a step of each rank waits for data."""
    return run.wait_share.value * run.ranks * 1000 / run.batches_per_s.value


def test_threads_take_more_cpu_time_only_where_they_outnumber_the_cores():
    crowded = [scale_ranks(simulator_of("threads"), ranks, 0.01) for ranks in (1, 2, 4)]
    assert [each.spin_factor.value > 1 for each in crowded] == [False, True, True]
    one, two, _ = crowded
    assert two.wait_share.low == pytest.approx(one.wait_share.low, abs=0.05)  # they may not spin
    assert two.wait_share.value > 0.3
    assert two.wait_share.high > 0.8
    for alone in ("fed", "waiting", "two ranks", "inline"):
        assert scale_ranks(simulator_of(alone), 8, 0.01).spin_factor.high == 1.0
    # On full cores they spun already when they were measured.
    assert scale_ranks(simulator_of("full"), 3, 0.5).spin_factor.high == pytest.approx(3.0)


@MEASURED
def test_remedies_at_other_ranks_are_measured_against_those_ranks(name: str):
    simulator = simulator_of(name)
    crowded = with_ranks(simulator, 8)
    there = PipelineChange(ranks=8, cpu_factor=crowded.spin_factor)
    speed = simulator.predict(there).speedup
    half = PipelineChange(service_factor=0.5)
    both = simulator.predict(replace(there, service_factor=0.5)).speedup
    assert crowded.predict(half).speedup == pytest.approx(both / speed, rel=0.02)


@MEASURED
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_ending_waits_is_never_slower_and_the_less_is_left_the_better(name: str, share: float):
    simulator = simulator_of(name)
    speeds = [
        simulator.predict(PipelineChange(capped_share=share, capped_ns=left_ns)).speedup
        for left_ns in (1e12, 2e7, 5e6, 1e6, 0.0)
    ]
    assert speeds[0] == pytest.approx(1.0)
    assert all(after >= before / NOISE for before, after in pairwise(speeds))


@MEASURED
@pytest.mark.parametrize("which", ["threads", "rank_threads"])
def test_the_less_of_their_time_threads_worked_the_more_a_limit_gives(name: str, which: str):
    simulator = simulator_of(name)
    speeds = [
        simulator.predict(PipelineChange(**{which: 1, "useful_share": share})).speedup
        for share in (1.0, 0.7, 0.4, 0.1)
    ]
    assert all(after >= before / NOISE for before, after in pairwise(speeds))
    enough = simulator.predict(PipelineChange(**{which: 64})).speedup
    assert enough == pytest.approx(1.0)  # a limit that nobody reaches


@MEASURED
def test_the_more_of_a_step_is_fixed_the_more_a_bigger_batch_gives(name: str):
    simulator = simulator_of(name)
    consume = float(simulator.costs.consume_ns.mean())
    speeds = [
        simulator.predict(
            PipelineChange(batch_factor=2.0, fixed_consume_ns=share * consume)
        ).speedup
        for share in (0.0, 0.3, 0.7, 1.0)
    ]
    assert all(after >= before / NOISE for before, after in pairwise(speeds))
    assert speeds[0] == pytest.approx(1.0)  # twice the samples in twice the time
    assert speeds[-1] <= 2.0 * NOISE


@MEASURED
def test_a_bigger_batch_without_fixed_costs_gives_nothing_on_freed_cores(name: str):
    simulator = simulator_of(name)
    freed = PipelineChange(threads=1, useful_share=0.2)
    both = simulator.predict(replace(freed, batch_factor=2.0)).speedup
    assert both == pytest.approx(simulator.predict(freed).speedup)


@MEASURED
def test_a_copy_saved_gives_at_most_its_share_of_the_step(name: str):
    simulator = simulator_of(name)
    period = simulator.measured.period_ns.mean()
    saved_ns = float(simulator.costs.consume_ns.mean()) / 2
    speed = simulator.predict(PipelineChange(consume_saved_ns=saved_ns)).speedup
    assert 1 / NOISE <= speed <= NOISE * period / (period - saved_ns)
