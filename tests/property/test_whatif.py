"""The simulation of a pipeline against bounds, closed forms and the loader's own bookkeeping."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.loader.executors.dispatch import Dispatch
from headrace.observe.whatif.core_waits import core_waits
from headrace.observe.whatif.measured_pipeline import MeasuredPipeline, measure
from headrace.observe.whatif.prediction import PipelineChange, Simulator
from headrace.observe.whatif.simulation import (
    BatchCosts,
    Pipeline,
    delivery_times,
    simulate,
    simulate_each,
)
from run_tables import MS, Run, RunTables, play

TIMES = st.lists(st.integers(1, 50), min_size=2, max_size=40)
WORKERS = st.integers(1, 6)
FACTOR = st.integers(1, 3)


def delivered_ns(pipeline: Pipeline, service: np.ndarray, consume: np.ndarray) -> np.ndarray:
    """Return when each batch is delivered, in the first drawing."""
    return delivery_times(pipeline, service, service, consume)[0][0]


def as_rows(values) -> np.ndarray:
    return np.array([values], dtype=np.float64)


def a_load(service, consume, cpu_share=0.0, consume_cpu=0.0) -> BatchCosts:
    made, used = as_rows(service), as_rows(consume)
    return BatchCosts(
        service_ns=made,
        service_cpu_ns=made * cpu_share,
        demand_ns=made * cpu_share,
        consume_ns=used,
        consume_cpu_ns=used * consume_cpu,
    )


@given(
    times=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=40),
    workers=WORKERS,
    factor=FACTOR,
    takes_next=st.booleans(),
)
def test_throughput_is_above_neither_bound(times, workers, factor, takes_next):
    service, consume = as_rows([each[0] for each in times]), as_rows([each[1] for each in times])
    pipeline = Pipeline(workers=workers, prefetch_factor=factor, takes_next=takes_next)
    delivered = delivered_ns(pipeline, service, consume)
    assert (np.diff(delivered) >= consume[0, :-1]).all()
    assert delivered[-1] + 1e-9 >= service.sum() / workers
    assert delivered[-1] <= service.sum() + consume[0, :-1].sum() + 1e-6
    assert (np.diff(delivered) >= 0).all()


@given(service=TIMES, consume=st.integers(1, 30), workers=WORKERS, factor=FACTOR)
def test_more_workers_that_take_the_next_batch_are_never_slower(service, consume, workers, factor):
    def end(count: int) -> float:
        pipeline = Pipeline(workers=count, prefetch_factor=factor, takes_next=True)
        used = as_rows([consume] * len(service))
        return float(delivered_ns(pipeline, as_rows(service), used)[-1])

    assert end(workers + 1) <= end(workers) + 1e-9


@given(
    service=st.integers(1, 50),
    consume=st.integers(1, 50),
    workers=WORKERS,
    factor=FACTOR,
    takes_next=st.booleans(),
)
def test_without_variance_it_is_the_closed_form(service, consume, workers, factor, takes_next):
    pipeline = Pipeline(workers=workers, prefetch_factor=factor, takes_next=takes_next)
    load = a_load([service] * 400, [consume] * 400)
    expected = max(consume, service / workers)
    assert simulate(pipeline, load).period_ns[0] == pytest.approx(expected, rel=0.02)
    alone = Pipeline(workers=0)
    assert simulate(alone, load).period_ns[0] == pytest.approx(service + consume)
    assert simulate(alone, load).wait_share == pytest.approx(service / (service + consume))


@given(
    service=st.integers(1, 50), consume=st.integers(1, 50), workers=WORKERS, cores=st.integers(1, 4)
)
def test_no_more_cpu_is_used_than_there_are_cores(service, consume, workers, cores):
    load = a_load([service] * 200, [consume] * 200, cpu_share=1.0, consume_cpu=1.0)
    period = simulate(Pipeline(workers=workers, cores=cores), load).period_ns[0]
    assert period * cores >= (service + consume) * 0.999


@given(service=TIMES, consume=st.integers(1, 30), workers=WORKERS, factor=FACTOR)
def test_it_delivers_when_the_loaders_own_bookkeeping_does(service, consume, workers, factor):
    pipeline = Pipeline(workers=workers, prefetch_factor=factor, takes_next=True)
    simulated = delivered_ns(pipeline, as_rows(service), as_rows([consume] * len(service)))
    assert played_with_dispatch(service, consume, pipeline) == pytest.approx(simulated)


def played_with_dispatch(service, consume, pipeline: Pipeline) -> list[float]:
    """Play an iteration event by event, with the bookkeeping that the loader runs on."""
    dispatch, waiting, working = Dispatch(), [], []
    free, now, asks_at = pipeline.workers, 0.0, 0.0
    issued, delivered = 0, []
    while len(delivered) < len(service):
        while asks_at <= now and (dispatch.deliver()) is not None:
            delivered.append(now)
            asks_at = now + consume
        while issued < len(service) and issued - len(delivered) < pipeline.depth:
            waiting.append(dispatch.issue(issued, 0))
            issued += 1
        while waiting and free:
            task = waiting.pop(0)
            heapq.heappush(working, (now + service[task.batch], task.number))
            free -= 1
        events = [working[0][0]] if working else []
        now = min([*events, asks_at] if asks_at > now else events, default=now)
        while working and working[0][0] <= now:
            dispatch.finish(heapq.heappop(working)[1])
            free += 1
    return delivered


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("service_ms", [5, 15, 40])
def test_simulating_what_was_measured_gives_what_was_measured(workers: int, service_ms: int):
    measured = measure(play(Run(workers=workers, service_ms=service_ms, busy_cores=2)))
    assert measured is not None
    simulator = Simulator(measured)
    assert simulator.calibration == pytest.approx(1.0, abs=0.08)
    same = simulator.predict(PipelineChange())
    assert same.speedup == pytest.approx(1.0)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (0, 4), (4, 2), (1, 8)])
def test_a_prediction_is_what_the_changed_run_then_measures(before: int, after: int):
    def played(workers: int) -> MeasuredPipeline:
        run = Run(workers=workers, service_ms=30, service_spread=0.25, batches=300, busy_cores=2)
        measured = measure(play(run))
        assert measured is not None
        return measured

    measured, then = played(before), played(after)
    prediction = Simulator(measured).predict(PipelineChange(workers=after))
    truth = measured.period_ns.mean() / then.period_ns.mean()
    assert prediction.speedup == pytest.approx(truth, rel=0.08)
    assert prediction.low - 0.08 * truth <= truth <= prediction.high + 0.08 * truth


def test_full_cores_give_nothing_for_more_workers():
    run = Run(workers=2, service_ms=40, cores=2, busy_cores=2, worker_cpu=1.0)
    measured = measure(play(run))
    assert measured is not None
    assert Simulator(measured).predict(PipelineChange(workers=8)).speedup == pytest.approx(
        1.0, abs=0.05
    )


@given(
    service=st.integers(1, 50), consume=st.integers(1, 50), workers=WORKERS, cores=st.integers(1, 4)
)
def test_a_consumer_waits_where_too_many_workers_run_at_once(service, consume, workers, cores):
    pipeline = Pipeline(workers=workers, cores=cores)
    load = a_load([service] * 100, [consume] * 100, cpu_share=1.0)
    result = simulate(pipeline, load)
    waits = core_waits(pipeline, load, result)
    # A worker is there while it computes or waits for a core.
    there = min(service * (1 + waits.workers[0]) / (result.period_ns[0] * workers), 1.0)
    expected = 0.0
    for running in product((0, 1), repeat=workers):  # which of the workers do
        odds = np.prod([there if each else 1.0 - there for each in running])
        expected += odds * (sum(running) // cores)
    assert waits.consumer[0] == pytest.approx(expected, rel=0.05, abs=0.02)


@given(st.integers(1, 12), st.integers(1, 6))
def test_what_waits_is_what_the_cores_have_too_much(others, cores):
    # All want a core for as long: of those on one core, each waits for the others.
    pipeline = Pipeline(workers=others, cores=cores)
    load = a_load([1.0] * 100, [1.0 / others] * 100, cpu_share=1.0, consume_cpu=1.0)
    busy = replace(simulate(Pipeline(workers=others), load), period_ns=np.array([1.0 / others]))
    waits = core_waits(pipeline, load, busy)
    on_each = [len(range(core, others + 1, cores)) for core in range(cores)]
    expected = sum(count * (count - 1) for count in on_each)
    found = waits.consumer[0] + waits.workers[0] * others
    assert found == pytest.approx(expected if others + 1 > cores else 0.0, rel=1e-6)
    assert waits.consumer[0] >= waits.workers[0] - 1e-9


@pytest.mark.parametrize(
    ("cores", "rank_cpu_ms", "expected"),
    [(3, 3, (1.70, 1.75)), (2, 3, (1.40, 1.55)), (2, 0, (1.70, 1.75))],
)
def test_two_workers_and_their_rank_hinder_each_other_on_two_cores(cores, rank_cpu_ms, expected):
    # 21 ms of CPU time a batch fit two cores in the 10.6 ms of a step, but not at every moment.
    run = Run(workers=1, service_ms=18, service_spread=0.0, cores=cores, worker_cpu=1.0)
    measured = measure(play(run))
    assert measured is not None
    simulator = Simulator(replace(measured, consume_cpu_ns=rank_cpu_ms * MS))
    least, most = expected
    assert least <= simulator.predict(PipelineChange(workers=2)).speedup <= most
    assert simulator.predict(PipelineChange()).speedup == pytest.approx(1.0, abs=0.001)


def speedup_of_fast_workers(tables: RunTables, receive_ms: float, receive_cpu_ms: float) -> float:
    """Return what ten times as fast workers give, where taking a batch takes so long."""
    for row in tables.rows["fetches"]:
        row["receive_ns"] = int(receive_ms * MS)
        row["receive_cpu_ns"] = int(receive_cpu_ms * MS) if receive_cpu_ms >= 0 else -1
    return Simulator(measure(tables)).predict(PipelineChange(service_factor=0.1)).speedup


def test_what_taking_a_batch_costs_counts_although_none_lay_ready():
    tables = play(Run(workers=1, service_ms=60, service_spread=0.0))
    # Of steps of 10.5 ms and batches of 6: what is to be taken in besides.
    alone = pytest.approx(60.5 / 10.5, rel=0.05)
    assert speedup_of_fast_workers(tables, -1, -1) == alone
    assert speedup_of_fast_workers(tables, 20, -1) == alone  # an older version's records
    # The worker answered late, as it had to do: an idle one takes half of the CPU time besides.
    five_more = pytest.approx(60.5 / 15.5, rel=0.05)
    assert speedup_of_fast_workers(tables, 20, 5 / 1.5) == five_more
    # Nobody is asked: all of it is the rank's own work.
    assert speedup_of_fast_workers(tables, 5, 5) == five_more


def test_too_few_batches_carry_no_prediction():
    assert measure(play(Run(batches=4))) is None
    assert measure(play(Run(loader=False))) is None


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    scales=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=6),
    workers=st.integers(0, 4),
    cores=st.sampled_from([0.7, 1.0, 2.0, 3.0, float("inf")]),
    takes_next=st.booleans(),
    auxiliary=st.integers(0, 2),
)
def test_costs_that_are_simulated_at_once_have_the_results_of_each_alone(
    seed, scales, workers, cores, takes_next, auxiliary
):
    random = np.random.default_rng(seed)
    service, consume = random.uniform(1, 50, (3, 30)), random.uniform(1, 50, (3, 30))
    pipeline = Pipeline(
        workers=workers, cores=cores, worker_cores=min(cores, 2.0), takes_next=takes_next,
        auxiliary=auxiliary if workers else 0,
    )  # fmt: skip
    several = [
        BatchCosts(
            service_ns=service * scale, service_cpu_ns=service * min(scale, 1.0) * 0.7,
            demand_ns=service * scale, consume_ns=consume, consume_cpu_ns=consume * 0.6,
            auxiliary_factor=1.2, receive_cpu_ns=0.5,
        )
        for scale in scales
    ]  # fmt: skip
    found = simulate_each(pipeline, several)
    for at_once, costs in zip(found, several, strict=True):
        alone = simulate(pipeline, costs)
        assert (at_once.period_ns == alone.period_ns).all()
        assert (at_once.consume_ns == alone.consume_ns).all()
        assert (at_once.local_share == alone.local_share).all()
