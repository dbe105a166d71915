"""Rules about workers and their cores: too few, too many threads, restarted, too many ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.observe.doctor.epoch_begins import (
    EpochBeginWaits,
    ending_waits_ns,
    epoch_begin_waits,
    takes_an_iterator_a_batch,
)
from headrace.observe.doctor.evidence import WARNING, Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.remedies import (
    WORTH_IT,
    calm_share,
    making_cause,
    more_workers_remedies,
    more_workers_remedy,
    one_thread_a_worker_remedy,
    predict_without,
    predicted_remedy,
)
from headrace.observe.doctor.scaling_forecast import (
    ScalingForecast,
    evidence_at_ranks,
    feeding_remedies,
    forecast_ranks,
    likely_ranks,
)
from headrace.observe.doctor.training_loader import TrainingLoader
from headrace.observe.whatif.prediction import (
    THREADED_FACTOR,
    PipelineChange,
    Simulator,
    are_threads_crowded,
    with_workers,
)


@rule
def check_too_few_workers(evidence: Evidence) -> Finding | None:
    """More workers would make the accelerator wait less, and there are cores for them.

    Fires where data wait is at least 5 % of step time, the workers are busy, and more of them
    give at least 5 % in the simulation: less than that is within a run's own noise. Where other
    programs fill the cores, more workers than cores only get a larger part of what these leave,
    and are not proposed. Where steps take batches of several loaders, those that would be the
    limit next get more workers, too.
    """
    work, loader = evidence.work, evidence.loader
    if not (evidence.starved and evidence.workers_busy) or work is None or loader is None:
        return None
    found = more_workers_remedy(evidence)
    if found is None:
        return None
    remedy, prediction = found
    if loader.by_thread:
        title = f"one thread of the rank makes all batches of the loader{loader.place}: no workers"
    elif loader.workers == 0:
        title = "the rank makes its batches itself while the accelerator waits: no workers"
    else:
        plural = "s are" if loader.workers > 1 else " is"
        title = f"{loader.workers} worker{plural} too few for the loader{loader.place}"
    return evidence.finding(
        title,
        evidence.waits_solved(prediction),
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "workers": loader.workers,
            "worker_idle_share": work.idle_share,
            "batch_wall_ms": float(work.column("wall_ns").mean() / 1e6),
            "worker_cpu_share": work.cpu_share,
            "cores": evidence.host.cores,
            "idle_cores": evidence.host.idle_cores,
        },
        cause=making_cause(evidence, evidence.making_samples),
        remedies=(remedy,),
    )


@rule
def check_unequal_workers(evidence: Evidence) -> Finding | None:
    """One worker makes more than its share of an iterable dataset's batches, and others idle.

    Fires where data wait is at least 5 % of step time, the busiest worker made over a tenth more
    than its share of the batches of an epoch, and equal shares give at least 5 % in the simulation.
    An iterable dataset shares itself out; with fewer files than workers, or files of unlike size,
    some have nothing to do, and more workers would not help.
    """
    shares, loader, simulator = evidence.shares, evidence.loader, evidence.simulator
    if not evidence.starved or shares is None or loader is None or simulator is None:
        return None
    if not shares.unequal:
        return None
    change = PipelineChange(workers=loader.workers, prefetch_factor=loader.prefetch_factor)
    prediction = simulator.predict(change)
    if prediction.speedup < WORTH_IT:
        return None
    makes = f"worker {shares.busiest} makes {shares.largest:.0%} of the batches"
    title = f"the {loader.workers} workers of the loader{loader.place} share unequally: {makes}"
    if shares.idle:
        none = "makes none" if shares.idle == 1 else "make none"
        title = f"{makes}, {shares.idle} of the {loader.workers} workers {none}"
    remedy = predicted_remedy(
        "equal-shares",
        f"equal shares for its {loader.workers} workers",
        prediction,
        "The dataset shares itself out (torch.utils.data.get_worker_info()), so more workers do not"
        f" help. Give each a part of like size: at least {loader.workers} files or shards for each "
        "rank, or every n-th sample of all to each of n workers.",
    )
    cause = Cause(file=loader.file, line=loader.line, share=shares.largest) if loader.file else None
    return evidence.finding(
        title,
        evidence.waits_solved(prediction),
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "workers": loader.workers,
            "workers_without_batches": shares.idle,
            "busiest_worker_share": shares.largest,
            "workers_worth": shares.effective,
        },
        cause=cause,
        remedies=(remedy,),
    )


_LITTLE_WORK = 0.2
"""A rank whose workers made so small a share of another's batches only made them ahead."""


@rule
def check_single_reader(evidence: Evidence) -> Finding | None:
    """One rank makes the batches of all ranks, and the others wait until it sends them theirs.

    Fires where data wait is at least 5 % of step time, two or more ranks ask the same loader for
    batches, and one of them makes more than five times as many as any other: as with Accelerate's
    `dispatch_batches`, the default for iterable datasets. The cores, files and network of the other
    ranks' hosts are then not used for data, and each batch is sent once more.
    """
    work, ranks = evidence.work, evidence.steps.ranks
    if not evidence.starved or work is None or len(ranks) < 2 or evidence.loader is None:
        return None
    made = sorted((int((work.rows["rank"] == rank).sum()), rank) for rank in ranks)
    (others, _), (most, reader) = made[-2], made[-1]
    if others >= _LITTLE_WORK * most:
        return None
    # Each rank would make its own part, while the others make theirs.
    waited = evidence.steps.data_wait_ns - evidence.sampler_ns
    prediction = predict_without(evidence, waited / 2, waited * (1.0 - 1.0 / len(ranks)))
    remedies: tuple[Remedy, ...] = ()
    if prediction.speedup >= WORTH_IT:
        how = (
            "Let each rank read its own part: Accelerate's DataLoaderConfiguration("
            "dispatch_batches=False). A map-style dataset is then shared out by Accelerate; of an "
            "iterable one each rank must take a part of its own, such as by "
            "datasets.distributed.split_dataset_by_node. Half of the wait, or all but one rank's "
            "share of it, is taken to go."
        )
        change = f"batches made by all {len(ranks)} ranks"
        remedies = (predicted_remedy("read-by-rank", change, prediction, how),)
    return evidence.finding(
        f"rank {reader} makes the batches of all {len(ranks)} ranks, and the others wait for it",
        evidence.flow_wait_seconds,
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "ranks": len(ranks),
            "batches_made_by_it": most,
            "most_made_by_another": others,
            "workers": evidence.loader.workers,
        },
        remedies=remedies + more_workers_remedies(evidence),
    )


@rule
def check_bound_cores(evidence: Evidence) -> Finding | None:
    """Ranks or their workers are bound to fewer cores than the host gives the job, and fill them.

    Fires where data wait is at least 5 % of step time, the processes' own CPU affinity allows fewer
    cores than the launcher has (taskset, numactl, `os.sched_setaffinity` in the script, in a
    library or in `worker_init_fn`), the workers are busy, and all of the launcher's cores give at
    least 5 % in the simulation.
    """
    host, simulator, loader = evidence.host, evidence.simulator, evidence.loader
    if not (evidence.starved and evidence.workers_busy) or simulator is None or loader is None:
        return None
    if not host.is_bound:
        return None
    # Without workers, or with few, more of them are what makes use of the cores.
    most = max(int(host.launched_cores // host.ranks), 1)
    counts = sorted({max(loader.workers, 1), max(loader.workers, most)})
    found = [(n, simulator.predict(_all_cores(evidence, n))) for n in counts]
    count, prediction = next(
        each for each in found if each[1].speedup >= 0.97 * found[-1][1].speedup
    )
    if prediction.speedup < WORTH_IT:
        return None
    who, cores = ("the ranks and their workers", host.cores)
    if host.worker_cores < host.cores:
        who, cores = "all workers", host.worker_cores
    also = (
        f" and num_workers={count} in the DataLoader{loader.place}"
        if count > loader.workers
        else ""
    )
    return evidence.finding(
        f"{who} are bound to {cores:g} of the {host.launched_cores:g} cores that the job may use",
        evidence.waits_solved(prediction),
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "bound_to_cores": cores,
            "cores_of_the_job": host.launched_cores,
            "busy_cores": host.busy_cores,
            "workers": loader.workers,
        },
        remedies=(
            predicted_remedy(
                "all-cores",
                f"all {host.launched_cores:g} cores",
                prediction,
                "Start the ranks without taskset or numactl, or with more cores, and leave out "
                f"os.sched_setaffinity in the script and in worker_init_fn{also}. Some libraries "
                "bind a process as they are imported: os.sched_getaffinity(0) says it.",
            ),
        ),
    )


def _all_cores(evidence: Evidence, workers: int) -> PipelineChange:
    return PipelineChange(cores=evidence.host.launched_cores, workers=workers)


@rule
def check_oversubscribed_threads(evidence: Evidence) -> Finding | None:
    """Workers and their threads ask for more cores than there are.

    Fires where data wait is at least 5 % of step time, the cores are full, and either the
    workers' processes use at least 1.5 times the CPU time of their main threads (OpenMP, OpenCV
    or MKL threads in each worker) or there are more than twice as many workers as cores.
    """
    work, loader = evidence.work, evidence.loader
    if not evidence.starved or work is None or loader is None or not work.cpu_measured:
        return None
    crowded = loader.workers * evidence.host.ranks > 2.0 * evidence.host.cores
    threaded = work.threads >= THREADED_FACTOR and loader.workers > 0
    if not evidence.cores_full or not (crowded or threaded):
        return None
    seconds = evidence.flow_wait_seconds
    if threaded:
        seconds *= 1.0 - 1.0 / work.threads
        title = f"each worker runs {work.threads:.1f} threads' worth of CPU on cores that are full"
    else:
        seconds *= 0.5
        title = f"{loader.workers} workers share {evidence.host.cores:g} cores"
    return evidence.finding(
        title,
        seconds,
        {
            "cpu_time_over_main_thread": work.threads,
            "workers": loader.workers,
            "ranks": evidence.host.ranks,
            "cores": evidence.host.cores,
            "busy_cores": evidence.host.busy_cores,
        },
        # the line whose work the threads share
        cause=making_cause(evidence, evidence.making_samples) if threaded else None,
        remedies=_thread_remedies(evidence, threaded=threaded),
    )


def _thread_remedies(evidence: Evidence, *, threaded: bool) -> tuple[Remedy, ...]:
    loader, simulator = evidence.loader, evidence.simulator
    if loader is None or simulator is None:
        return ()
    if threaded:
        remedy = one_thread_a_worker_remedy(evidence)
        return (remedy,) if remedy is not None else ()
    fewer = max(int(evidence.host.cores // evidence.host.ranks), 1)
    change = f"{fewer} workers instead of {loader.workers}"
    how = loader.advice("num_workers", fewer)
    overrides = loader.overridden("num_workers", fewer)
    return (predicted_remedy("workers", change, with_workers(simulator, fewer), how, overrides),)


@rule
def check_workers_restarted(evidence: Evidence) -> Finding | None:
    """Workers are restarted each epoch, and the ranks wait for them.

    Fires where workers of the loader that feeds training were started at least twice and the
    steps in which it began again waited, beyond other steps, for at least 5 % of all step time.
    The time in which a worker made the epoch's first batch does not count: it would also be made
    by workers that live on. It does where a script takes one batch or two of each iterator, as by
    `next(iter(loader))`: of an iterator that is kept, they are made ahead. What the workers took to
    end before is lost as well, and is outside of steps.
    """
    loader, steps, rows = evidence.loader, evidence.steps, evidence.processes
    if not evidence.enough or loader is None or loader.persistent or loader.workers == 0:
        return None
    first_workers = rows.having(role="worker", loader=loader.number, worker=0)
    starts = [first_workers.having(rank=rank).count for rank in steps.ranks]
    if min(starts, default=0) < 2 or not steps.starts_loader.any():
        return None
    waits, each_batch = epoch_begin_waits(evidence), takes_an_iterator_a_batch(evidence)
    saved = waits.starting_ns + (waits.making_ns if each_batch else 0.0)
    share = float(saved.sum() / max(steps.wall_ns.sum(), 1.0))
    if share < WARNING:
        return None
    each = _duration(float(saved[steps.starts_loader].mean()) / 1e9)
    ending = ending_waits_ns(evidence)
    ends_s = float(ending[steps.starts_loader].mean()) / 1e9
    title = f"starting the workers again takes {each} an epoch, {share:.0%} of step time"
    if ends_s >= _LONG_END_S:
        title += f", and ending them before it {_duration(ends_s)}"
    if each_batch:
        title = (
            f"an iterator is made for each batch of the loader{loader.place}, whose workers start "
            f"again each time: {each}, {share:.0%} of step time"
        )
    remedies = _one_start_remedies(evidence, loader, waits, max(starts), each_batch=each_batch)
    return evidence.finding(
        title,
        share * steps.total_seconds + float(ending.sum()) / max(len(steps.ranks), 1) / 1e9,
        {
            "starts": max(starts),
            "seconds_each": float(saved[steps.starts_loader].mean()) / 1e9,
            "end_seconds_each": ends_s,
            "share_of_step_time": share,
            "workers": loader.workers,
            "constructed": loader.constructed,
        },
        remedies=remedies,
    )


def _one_start_remedies(
    evidence: Evidence,
    loader: TrainingLoader,
    waits: EpochBeginWaits,
    starts: int,
    *,
    each_batch: bool,
) -> tuple[Remedy, ...]:
    """Return what workers that are started once would give."""
    if each_batch:
        how = (
            f"Keep one iterator of {loader.named}: make it before the loop by iter(), take each "
            "batch by next(), and make another where that has ended. Workers then live on and make "
            "batches ahead. All of the wait for their start, and up to all of that for the batch, "
            "is taken to go."
        )
        most = waits.starting_ns + waits.making_ns
        gain = predict_without(evidence, waits.starting_ns, most * 0.99)
        return (predicted_remedy("one-iterator", "an iterator that is kept", gain, how),)
    is_made_anew = loader.constructed > starts / 2
    how = loader.advice("persistent_workers", "True")
    if is_made_anew:
        how = (
            f"Construct the DataLoader{loader.place} once, before the epochs begin, and give it "
            f"persistent_workers=True: it is constructed {loader.constructed} times."
        )
    overrides = () if is_made_anew else loader.overridden("persistent_workers", 1)
    ending, where = ending_waits_ns(evidence), evidence.steps.after_begins
    gain = predict_without(evidence, waits.starting_ns, before_ns=ending, where=where)
    return (predicted_remedy("persistent-workers", "persistent workers", gain, how, overrides),)


_LONG_END_S = 0.1
"""An end of the workers that takes less is not mentioned."""


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1e3:.0f} ms"


@rule
def check_shallow_prefetch(evidence: Evidence) -> Finding | None:
    """Batches differ in cost: those made ahead run out, although there are enough workers.

    Fires where data wait is at least 5 % of step time, the workers together make batches at
    least 10 % faster than they are used, and the simulation gives at least 5 % for a deeper
    prefetch. Where the host has no core to spare, batches vary because workers wait for one,
    and the rule does not fire.
    """
    work, loader, simulator = evidence.work, evidence.loader, evidence.simulator
    if not evidence.starved or work is None or loader is None or simulator is None:
        return None
    if loader.workers == 0 or evidence.unequal_shares:
        return None
    measured = simulator.measured
    service, consume = float(measured.service_ns.mean()), float(measured.consume_ns.mean())
    if service / loader.workers > 0.9 * consume or evidence.cores_short:
        return None
    tried = [
        (factor, simulator.predict(PipelineChange(prefetch_factor=loader.prefetch_factor * factor)))
        for factor in (2, 4, 8)
    ]
    best = max(prediction.speedup for _, prediction in tried)
    if best < WORTH_IT:
        return None
    factor, prediction = next(each for each in tried if each[1].speedup >= 0.98 * best)
    depth = loader.prefetch_factor * factor
    change = f"a prefetch_factor of {depth} instead of {loader.prefetch_factor}"
    how = loader.advice("prefetch_factor", depth)
    overrides = loader.overridden("prefetch_factor", depth)
    return evidence.finding(
        "batches vary so much in cost that the ones made ahead run out",
        evidence.waits_solved(prediction),
        {
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "batch_wall_ms": service / 1e6,
            "batch_wall_deviation_ms": float(np.std(measured.service_ns)) / 1e6,
            "workers": loader.workers,
            "prefetch_factor": loader.prefetch_factor,
        },
        remedies=(predicted_remedy("prefetch", change, prediction, how, overrides),),
    )


@rule
def check_cpu_starved_by_ranks(evidence: Evidence) -> Finding | None:
    """The ranks of a host together ask for more cores than it has; one alone would be fed.

    Fires where data wait is at least 5 % of step time, two or more ranks share a host whose
    cores are full, and the simulation of one rank alone on it waits for less than half of that.
    Where workers run several threads, and those of one rank alone each have a core, its workers
    are assumed to need the CPU time of the calmest batches, in which no thread spins.

    It is also predicted from a run of one rank that waits for less than 5 %: where the
    simulation of as many ranks as the host has accelerators (2, 4 or 8, but no more than cores,
    where it has none) waits for at least 10 %, and its 90 % interval lies above 5 %. Where
    threads of the workers would outnumber the cores, and so may spin, the interval is wide:
    then it "may starve" from 10 % on. Either costs nothing yet, so its severity is "info".
    Fires only where the rank's own use of the cores was recorded.
    """
    if evidence.host.ranks < 2:
        return _forecast_from_one_rank(evidence)
    host, simulator = evidence.host, evidence.simulator
    if not evidence.starved or simulator is None or not evidence.cores_full:
        return None
    alone = simulator.predict(_one_rank(evidence, simulator))
    if alone.wait_share > simulator.before.wait_share / 2:
        return None
    cause = making_cause(evidence, evidence.making_samples)
    return evidence.finding(
        f"{host.ranks} ranks starve on {host.cores:g} cores, where one alone would be fed",
        evidence.waits_solved(alone),
        {
            "ranks": host.ranks,
            "cores": host.cores,
            "busy_cores": host.busy_cores,
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "data_wait_share_alone": alone.wait_share,
            "cpu_ms_a_batch": float(simulator.measured.demand_ns.mean() / 1e6),
        },
        cause=cause,
        remedies=feeding_remedies(evidence, cause),
    )


def _one_rank(evidence: Evidence, simulator: Simulator) -> PipelineChange:
    """Return the change to one rank alone, whose workers' threads may have no reason to spin.

    Threads spin as long as others have the cores that they wait for. If workers have one thread
    each, batches with more CPU time are larger ones.
    """
    alone, work = PipelineChange(ranks=1), evidence.work
    if work is None or work.threads < THREADED_FACTOR:
        return alone
    calm = PipelineChange(ranks=1, cpu_factor=calm_share(work))
    return alone if are_threads_crowded(simulator.changed(calm)) else calm


def _forecast_from_one_rank(evidence: Evidence) -> Finding | None:
    """Return the forecast finding for more ranks from the run of one rank."""
    if evidence.others_fill_cores:
        return None
    for ranks in likely_ranks(evidence):
        forecast = forecast_ranks(evidence, ranks, remedies=False)
        if forecast is None:
            return None
        if forecast.starves or forecast.may_starve:
            remedies = feeding_remedies(evidence_at_ranks(evidence, ranks), forecast.cause)
            return _forecast_finding(evidence, replace(forecast, remedies=remedies))
    return None


def _forecast_finding(evidence: Evidence, forecast: ScalingForecast) -> Finding:
    now, then = forecast.now.wait_share, forecast.then.wait_share
    likely = "starve" if forecast.starves else "may starve"
    interval = "" if forecast.starves else f" ({then.low:.0%} to {then.high:.0%})"
    return evidence.finding(
        f"at {forecast.then.ranks} ranks this host's {forecast.cores:g} cores {likely}: "
        f"data wait {now.value:.0%} -> {then.value:.0%}{interval}",
        0.0,
        {
            "ranks": forecast.then.ranks,
            "cores": forecast.cores,
            "data_wait_share": now.value,
            "data_wait_share_then": then.value,
            "data_wait_share_then_low": then.low,
            "data_wait_share_then_high": then.high,
            "scaling_efficiency_then": forecast.then.efficiency.value,
            "cpu_ms_a_batch": forecast.cpu_ms_a_batch,
        },
        cause=forecast.cause,
        remedies=forecast.remedies,
        severity="info",
        forecast=True,
    )
