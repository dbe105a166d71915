"""Remedies for full cores: fewer threads, and cores of auxiliary hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.core.overrides import Override
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Remedy
from headrace.observe.doctor.remedies import WORTH_IT, predicted_remedy
from headrace.observe.whatif.measured_pipeline import BatchWork
from headrace.observe.whatif.prediction import PipelineChange, Prediction, Simulator, with_auxiliary
from headrace.observe.whatif.scaling import MAX_SPIN_FACTOR

_CALM_LIMIT = 0.5
"""If the calmest twentieth of the batches took less than this share of the mean CPU time, the
excess of the others is spinning, not work. In reference case A it took 0.76 and 0.82 of the mean
where each thread had a core, and 0.14 to 0.47 where they shared them."""
_MAX_HOSTS = 4
_LEAST_GAIN = 1.05
"""A further host is proposed only if it gives at least this speed-up."""
_CROWDED_THREADS = 1.5
"""With more running or waiting threads a core than this, threads spin for others that wait."""
_RANK_THREADS = 1.2
"""A rank that keeps more cores busy than this has threads of its own."""


def one_thread_a_worker_remedy(evidence: Evidence) -> Remedy | None:
    """Return what one thread in each worker would give, by `_predict_fewer_threads`."""
    loader, simulator, work = evidence.loader, evidence.simulator, evidence.work
    if loader is None or loader.workers == 0 or simulator is None or work is None:
        return None
    applies = loader.kind == "torch"
    calm = calm_share(work)
    # With more ranks than were measured its threads are assumed to spin for longer.
    threads = max(work.threads / calm, simulator.spin_factor)
    prediction, basis = _predict_fewer_threads(
        evidence, simulator, PipelineChange(threads=1), threads, calm
    )
    if prediction.high < WORTH_IT:
        return None
    return predicted_remedy(
        "threads",
        "one thread a worker",
        prediction,
        f"{'headrace run --apply worker_threads=1; or in' if applies else 'In'} the DataLoader's "
        "worker_init_fn: cv2.setNumThreads(0), and OMP_NUM_THREADS=1 before the start. "
        f"{basis}",
        (Override("worker_threads", 1),) if applies else (),
    )


def calm_share(work: BatchWork) -> float:
    """Return the share of the workers' CPU time that is work, by their calm batches; or 1."""
    return work.calm_share if work.calm_share < _CALM_LIMIT else 1.0


def one_thread_a_rank_remedy(evidence: Evidence) -> Remedy | None:
    """Return what one thread in each rank would give, if ranks use several."""
    host, simulator = evidence.host, evidence.simulator
    if simulator is None or host.rank_cores is None:
        return None
    threads = float(simulator.costs.consume_cpu_ns.mean() / simulator.costs.consume_ns.mean())
    if threads < _RANK_THREADS:
        return None
    prediction, basis = _predict_fewer_threads(
        evidence, simulator, PipelineChange(rank_threads=1), threads
    )
    if prediction.speedup < WORTH_IT:
        return None
    return predicted_remedy(
        "rank-threads",
        "one thread a rank",
        prediction,
        "headrace run --apply rank_threads=1, or OMP_NUM_THREADS=1 before the start and "
        f"torch.set_num_threads(1). {basis}",
        (Override("rank_threads", 1),),
    )


def _predict_fewer_threads(
    evidence: Evidence,
    simulator: Simulator,
    change: PipelineChange,
    threads: float,
    calm: float = 1.0,
) -> tuple[Prediction, str]:
    """Return the prediction for fewer threads, where `threads` shared the work, and its basis.

    Threads spin while they wait for each other. All but one may; and if more threads want a core
    than there are, each spins while those it waits for are not on one, so that only one in `threads
    a core` makes progress. Workers whose BLAS had two threads took 6 to 8 times the CPU time of one
    thread where 5 to 10 threads wanted each core.

    At the low end, all of their time is work, or what the calmest batches took (`calm`, a share of
    the mean). On crowded cores next to nothing is at the high end: how much they spin depends on
    how short the work is between two waits, which is not recorded.
    """
    crowd = _threads_a_core(evidence)
    spun = max(threads, crowd, 1.0)
    likely = simulator.predict(replace(change, useful_share=1.0 / spun))
    least = simulator.predict(replace(change, useful_share=calm))
    low, high = min(least.low, likely.low), likely.high
    at_most = spun
    if crowd > _CROWDED_THREADS:
        at_most = max(MAX_SPIN_FACTOR, spun)
        high = max(simulator.predict(replace(change, useful_share=1.0 / at_most)).high, high)
    all_of_it = "all of it" if calm == 1.0 else f"{calm:.0%}, as in the calmest of the batches,"
    basis = (
        f"Of its threads' CPU time {1.0 / spun:.0%} is taken to be work, and the rest waiting for "
        "each other, spinning, as those of BLAS and OpenMP do on full cores; at the low end "
        f"{all_of_it} is work, at the high end {1.0 / at_most:.0%}."
    )
    return replace(likely, low=low, high=high), basis


def _threads_a_core(evidence: Evidence) -> float:
    """Return how many threads ran or waited for each core, with the cores that others used.

    How many threads of others wait is unknown in a container, which sees those of the whole
    machine.
    """
    host = evidence.host
    return (evidence.wanted_threads + min(host.foreign_cores, host.cores)) / host.cores


def auxiliary_hosts_remedy(evidence: Evidence) -> Remedy | None:
    """Return the fewest auxiliary hosts like this one that give nearly the most."""
    if evidence.simulator is None or not np.isfinite(evidence.host.cores):
        return None
    hosts, prediction = 1, _predict_with_hosts(evidence, 1)
    for more in range(2, _MAX_HOSTS + 1):
        better = _predict_with_hosts(evidence, more)
        if better.speedup < _LEAST_GAIN * prediction.speedup:
            break
        hosts, prediction = more, better
    if prediction.speedup < WORTH_IT or prediction.low <= 1.0:
        return None
    plural = "s" if hosts > 1 else ""
    used = evidence.offload.hosts if evidence.offload is not None else 0
    more_word = " more" if used else ""
    return predicted_remedy(
        "auxiliary-hosts",
        f"{hosts}{more_word} auxiliary host{plural} of {evidence.host.cores:g} cores",
        prediction,
        "Have CPU hosts beside this one make batches, an instance group of their own: headrace run "
        f"--engine ray --group gpu=1 --group cpu={used + hosts} --offload cpu (docs/clusters.md). "
        "Where none helped yet, a core there is taken to do four fifths to five fourths of what "
        "one here does.",
    )


def _predict_with_hosts(evidence: Evidence, hosts: int) -> Prediction:
    simulator, host = evidence.simulator, evidence.host
    assert simulator is not None  # checked by the caller
    # Auxiliary cores in use already.
    used = simulator.measured.pipeline.auxiliary * max(simulator.costs.busy_cores, 1.0)
    return with_auxiliary(simulator, used + hosts * host.cores / host.ranks)
