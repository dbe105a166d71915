"""Remedies for cores that are full: fewer threads, and cores of other hosts."""

from __future__ import annotations

import numpy as np

from headrace.core.overrides import Override
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Remedy
from headrace.observe.doctor.remedies import WORTH_IT, predicted
from headrace.observe.whatif.prediction import Change, Prediction

_MOST_HOSTS = 4
_MUCH_MORE = 1.05
"""A further host that gives less is not asked for."""
_RANK_THREADS = 1.2
"""A rank that keeps more cores busy than this does so by threads of its own."""


def one_thread_a_worker(evidence: Evidence) -> Remedy | None:
    """Return what one thread in each worker would give.

    Between two bounds: the other threads do work that the first must then do, or they only spin.
    """
    loader, simulator = evidence.loader, evidence.simulator
    if loader is None or loader.workers == 0 or simulator is None:
        return None
    prediction = simulator.predict_between(Change(threads=1, threads_share=True), Change(threads=1))
    if prediction.high < WORTH_IT:
        return None
    return predicted(
        "threads",
        "one thread a worker",
        prediction,
        "headrace run --apply worker_threads=1; or in the DataLoader's worker_init_fn: "
        "cv2.setNumThreads(1), and OMP_NUM_THREADS=1 before the start. The other threads are taken "
        "to do anything from all of their work to none.",
        (Override("worker_threads", 1),) if loader.kind == "torch" else (),
    )


def one_thread_a_rank(evidence: Evidence) -> Remedy | None:
    """Return what one thread in each rank would give, where ranks use several; as for workers."""
    host, simulator = evidence.host, evidence.simulator
    if simulator is None or host.rank_cores is None:
        return None
    load = simulator.load
    if load.consume_cpu_ns.mean() < _RANK_THREADS * load.consume_ns.mean():
        return None
    prediction = simulator.predict_between(
        Change(rank_threads=1, threads_share=True), Change(rank_threads=1)
    )
    if prediction.speedup < WORTH_IT:
        return None
    return predicted(
        "rank-threads",
        "one thread a rank",
        prediction,
        "headrace run --apply rank_threads=1, or OMP_NUM_THREADS=1 before the start and "
        "torch.set_num_threads(1). The other threads are taken to do anything from all of their "
        "work to none.",
        (Override("rank_threads", 1),),
    )


def auxiliary_hosts(evidence: Evidence) -> Remedy | None:
    """Return the fewest auxiliary hosts like this one that give nearly the most.

    A batch's way over the network was not measured: it is taken to cost between nothing and as
    long again as making the batch, so that a core there does all to half of what one here does.
    """
    if evidence.simulator is None or not np.isfinite(evidence.host.cores):
        return None
    hosts, prediction = 1, _with_hosts(evidence, 1)
    for more in range(2, _MOST_HOSTS + 1):
        better = _with_hosts(evidence, more)
        if better.speedup < _MUCH_MORE * prediction.speedup:
            break
        hosts, prediction = more, better
    if prediction.speedup < WORTH_IT or prediction.low <= 1.0:
        return None
    plural = "s" if hosts > 1 else ""
    return predicted(
        "auxiliary-hosts",
        f"{hosts} auxiliary host{plural} of {evidence.host.cores:g} cores",
        prediction,
        "Have CPU hosts beside this one make batches: an instance group of their own. The way over "
        "the network is taken to cost from nothing to as long again as making a batch.",
    )


def _with_hosts(evidence: Evidence, hosts: int) -> Prediction:
    simulator, host = evidence.simulator, evidence.host
    assert simulator is not None  # asked before
    near, far = (
        Change(
            auxiliary_cores=hosts * host.cores / host.ranks,
            auxiliary_ns=way_ns,
            receive_cpu_ns=float(evidence.work.column("send_ns").mean()) if evidence.work else 0.0,
        )
        for way_ns in (0.0, float(simulator.load.service_ns.mean()))
    )
    return simulator.predict_between(far, near)
