"""Rules about waits for data that no worker explains: the handoff of batches, or nothing known.

The handoff of a ready batch is a fixed cost of each batch, however early it was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.observe.doctor.core_contention import core_wait_title, waits_for_cores
from headrace.observe.doctor.epoch_begins import epoch_begin_waits
from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.remedies import (
    WORTH_IT,
    first_loader_remedies,
    making_cause,
    predict_less_waiting,
    predict_twice_the_batch,
    predict_without,
    predicted_remedy,
)
from headrace.observe.doctor.stack_samples import (
    StackSample,
    find_hotspot,
    is_device_sync,
    is_lock,
    is_sleep,
    runs_model,
    samples_during,
)
from headrace.observe.whatif.measured_pipeline import BatchWork, wait_for_ready_ns
from headrace.observe.whatif.prediction import PipelineChange
from headrace.observe.whatif.tables import Floats, covered_before

HANDOFF_NS = 2e6
"""Largest handoff of a batch of few tensors from a worker: a queue, and for each tensor a handle
and a mapping. With torch's loader two tensors took 1.6 ms on a slow, calm host; 0.2 ms on fast
ones."""
_CALM_PERCENT = 25
"""Where others use the cores at times, the share of the waits assumed to be free of that."""


def ready_handoff_ns(evidence: Evidence) -> tuple[float, float]:
    """Return the script's and the accelerator's wait in a handoff of a ready batch; 0 if unseen."""
    loader, steady_steps = evidence.loader, evidence.steady_steps
    if loader is None:
        return 0.0, 0.0
    # The shortest waits count if others may include waiting for a core, as with several workers.
    workers = max(loader.workers, 2) if evidence.others_crowd else loader.workers
    taken = wait_for_ready_ns(evidence.fetches, loader.number, workers)
    if steady_steps.device is None:
        return taken, taken
    return taken, min(taken, float((steady_steps.data_wait_ns / steady_steps.batches).mean()))


def is_handoff_bound(evidence: Evidence) -> bool:
    """Return whether workers are idle, and a rank waits no longer than handoffs take.

    Waits beyond that may be 5 % of step time, the lowest threshold of data wait. Where others crowd
    the cores, rank and worker may wait for a core at each turn of the handoff. There a rank waits
    for data only while a worker makes a batch: the rest of longer waits does not count if the
    calmest quarter of the waits is no longer than a handoff.
    """
    if evidence.loader is None or evidence.work is None or evidence.workers_busy:
        return False
    steps = evidence.steps
    waited, batches = steps.data_wait_ns - evidence.sampler_ns, steps.batches
    excess = np.maximum(waited - HANDOFF_NS * batches, 0.0)
    if evidence.others_crowd:
        if np.percentile(waited / batches, _CALM_PERCENT) > HANDOFF_NS:
            return False
        excess = np.minimum(excess, _making_wait_ns(evidence))
    return float(excess.sum()) < WARNING * float(steps.wall_ns.sum())


def fewer_handoffs_remedies(evidence: Evidence, hand_over_ns: float) -> tuple[Remedy, ...]:
    """Return what larger batches would give."""
    prediction = predict_twice_the_batch(evidence, (hand_over_ns / 2, hand_over_ns))
    if prediction.speedup < WORTH_IT:
        return ()
    how = (
        "Raise batch_size while memory allows it. Half to all of taking a batch over is taken to "
        "cost the same whatever its size; all else of a step grows with it."
    )
    return (predicted_remedy("bigger-batch", "twice the batch size", prediction, how),)


def _making_wait_ns(evidence: Evidence) -> Floats:
    """Return for each step its rank's wait for batches while one of its workers made one.

    Workers' first batches are not in the evidence: all of the wait for them counts.
    """
    steps, fetches = evidence.steps.rows, evidence.fetches
    work, loader = evidence.work, evidence.loader
    waited = np.zeros(len(evidence.steps))
    if work is None or loader is None:
        return waited
    for rank in evidence.steps.ranks:
        places = np.flatnonzero(steps["rank"] == rank)
        begins = steps["start_ns"][places]
        mine = fetches.having(rank=rank, loader=loader.number)
        asked_ns, had_ns = mine["start_ns"], mine["start_ns"] + mine["wait_ns"]
        within = np.searchsorted(begins, asked_ns, side="right") - 1
        counts = (within >= 0) & (asked_ns < (begins + steps["wall_ns"][places])[within])
        made = work.rows.having(rank=rank)
        made_ns = made["start_ns"], made["start_ns"] + made["wall_ns"]
        during = np.where(
            mine["batch"] < loader.workers,
            had_ns - asked_ns,
            covered_before(*made_ns, had_ns) - covered_before(*made_ns, asked_ns),
        )
        np.add.at(waited, places[within[counts]], during[counts])
    return waited


_COMPUTES, _WAITS = 0.3, 0.4
_MOSTLY = 0.5
"""First batches with this share of the data wait are its reason."""


@rule
def check_data_wait(evidence: Evidence) -> Finding | None:
    """Steps wait for data, and no narrower rule says why.

    Fires at 5 % of step time (10 % is serious, 20 % critical). Where the accelerator's own
    clock is recorded, only time in which it had nothing to do counts as data wait, here and in
    every rule about data: a script's wait costs nothing while the device still has work.

    Where the script has no DataLoader, nothing marks its data wait, by no clock; then the
    rank's own lines that run no part of torch, outside backward and optimizer, count as such,
    whether they compute, wait for a queue, or sleep. Below 30 % on a core they wait rather than
    make data.

    With a loader, the records still show some cases: the first batch of each epoch takes long to
    make; the dataset iterates another loader, whose workers do not keep up; workers off the CPU for
    40 % of their time wait for something unknown, or for a core, where others fill these; idle
    workers have their batches ready, so handing them over takes long. Where others fill the host's
    cores meanwhile, the rank waits for a core: nothing in the script would change that, so it is a
    warning however long it takes.

    Handing over a ready batch takes up to 2 ms (see `data_wait.py`). Where workers are idle
    and waits exceed that by less than 5 % of step time, the loader keeps up, and its steps are
    short: no fault below 10 % of step time, and a warning above, as larger batches help. Where
    others leave less than one core idle, the handoff waits for a core at times; then only the
    part of a longer wait in which a worker made a batch counts.
    """
    if not evidence.enough:
        return None
    if evidence.loader is None:
        return _finding_without_loader(evidence)
    share = evidence.steps.data_wait_share
    if share < WARNING:
        return None
    if is_handoff_bound(evidence) and (share < SERIOUS or not evidence.others_fill_cores):
        return _short_steps_finding(evidence)
    loader, work = evidence.loader, evidence.work
    title, cause = _title_and_cause(evidence)
    is_other_loaders = evidence.iterates_other_loader
    idle = work is not None and not (evidence.workers_busy or is_other_loaders)
    not_ours = idle or _computes_without_cores(evidence)
    severity = evidence.severity(evidence.steps.data_wait_seconds)
    return evidence.finding(
        title,
        evidence.steps.data_wait_seconds,
        {
            "data_wait_share": share,
            **evidence.script_data_wait,
            "loader": loader.kind,
            "workers": loader.workers,
            "worker_cpu_share": work.cpu_share if work is not None else None,
            "worker_idle_share": work.idle_share if work is not None else None,
            "cores_used_by_others": evidence.host.foreign_cores,
            **evidence.core_pressure,
        },
        cause=cause,
        remedies=_in_time_remedies(evidence),
        severity="warning" if not_ours and evidence.others_fill_cores else severity,
    )


def _in_time_remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what it would give if half to all of the wait went."""
    if _first_batches_matter(evidence):
        return _first_batch_remedies(evidence)
    if _computes_without_cores(evidence):
        return _own_cores_remedies(evidence)
    waited = evidence.steps.data_wait_ns
    prediction = predict_without(evidence, waited / 2, waited * 0.99)
    if prediction.speedup < WORTH_IT:
        return ()
    name, change = "in-time", "batches that are there in time"
    how = "No rule knows what holds the batches up: the line and the evidence say where to look."
    if evidence.iterates_other_loader:
        change = "more workers for the loader that it iterates"
        how = (
            "Give the DataLoader that the dataset iterates more workers, or cheaper samples; the "
            "outer one can have none, as a worker may start no others."
        )
    elif evidence.others_fill_cores and not (evidence.workers_busy and _sleeps_mostly(evidence)):
        name, change = "own-cores", "cores of its own"
        how = f"{evidence.who_takes_cores} take the cores: move those, or this one."
    how += " Half to all of the wait is taken to go."
    return (predicted_remedy(name, change, prediction, how),)


def _sleeps_mostly(evidence: Evidence) -> bool:
    """Return whether making batches mostly sleeps or waits for a lock, which no core shortens."""
    seen = evidence.making_samples
    waits_ns = sum(sample.wall_ns for sample in seen if is_sleep(sample) or is_lock(sample))
    return waits_ns >= _MOSTLY * sum(sample.wall_ns for sample in seen) > 0


def _short_steps_finding(evidence: Evidence) -> Finding:
    steps, share = evidence.steps, evidence.steps.data_wait_share
    step_ms = float(steps.wall_ns.mean() / 1e6)
    wait_ms = float(steps.data_wait_ns.sum() / max(steps.rows["batches"].sum(), 1) / 1e6)
    taking = f"taking them over needs {wait_ms:.2f} ms each"
    if steps.device is not None:
        taking = f"the accelerator waits {wait_ms:.2f} ms for each to be taken over"
    slow = share >= SERIOUS
    others = f", while {evidence.others_use}" if evidence.others_crowd else ""
    return evidence.finding(
        f"batches are ready; {taking}, in steps of {step_ms:.1f} ms{others}",
        steps.data_wait_seconds,
        {
            "data_wait_share": share,
            **evidence.script_data_wait,
            "step_ms": step_ms,
            "wait_for_batch_ms": wait_ms,
            "cores_used_by_others": evidence.host.foreign_cores,
        },
        remedies=fewer_handoffs_remedies(evidence, wait_ms * 1e6) if slow else (),
        severity="warning" if slow else "info",
    )


def _title_and_cause(evidence: Evidence) -> tuple[str, Cause | None]:
    loader, work = evidence.loader, evidence.work
    assert loader is not None  # checked by the caller
    built = None
    if loader.file:
        built = Cause(file=loader.file, line=loader.line, share=evidence.steps.data_wait_share)
    if _first_batches_matter(evidence):
        return _first_batch_title(evidence), _first_batch_cause(evidence) or built
    if evidence.iterates_other_loader:
        return _other_loader_title_and_cause(evidence)
    if work is not None and not evidence.workers_busy:
        why = f"taking their batches from the loader{loader.place} takes long"
        if evidence.others_fill_cores:
            why, built = evidence.others_use, None
        return f"workers are idle, but {why}", built
    if work is None or not work.cpu_measured or 1.0 - work.cpu_share < _WAITS:
        return f"the loader{loader.place} does not keep up", built
    if _computes_without_cores(evidence):
        cause = making_cause(evidence, evidence.making_samples)
        return core_wait_title(evidence, work, cause), cause
    waiting = making_cause(evidence, evidence.making_samples, off_cpu_only=True)
    where = f", most of it in {waiting}" if waiting is not None else ""
    of_time = f"{1.0 - work.cpu_share:.0%} of"
    title = f"workers wait, off the CPU, {of_time} their time{where}"
    if loader.workers == 0:
        title = f"the rank waits, off the CPU, {of_time} the time in which it makes batches{where}"
    return title, waiting or built


def _other_loader_title_and_cause(evidence: Evidence) -> tuple[str, Cause | None]:
    cause = making_cause(evidence, evidence.making_samples)
    where = f", in {cause}" if cause is not None else ""
    place = evidence.loader.place if evidence.loader is not None else ""
    return (
        f"the dataset of the loader{place} waits for another loader that it iterates, whose "
        f"workers do not keep up{where}"
    ), cause


def _computes_without_cores(evidence: Evidence) -> bool:
    """Return whether busy workers are off the CPU because other programs have the cores."""
    work = evidence.work
    if work is None or not (evidence.workers_busy and work.cpu_measured):
        return False
    return 1.0 - work.cpu_share >= _WAITS and waits_for_cores(evidence)


def _own_cores_remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what it would give if workers waited for a core half to a tenth as long."""
    work = evidence.work
    prediction = None if work is None else predict_less_waiting(evidence, 1.0 - work.cpu_share)
    if prediction is None:
        return ()
    how = (
        f"{evidence.who_takes_cores} take the cores: move those, or this one. Waits for a core are "
        "taken to be half to a tenth as long then."
    )
    return (predicted_remedy("own-cores", "cores of its own", prediction, how),)


def _first_batches_matter(evidence: Evidence) -> bool:
    """Return whether most data wait is for the first batches of epochs, which take long to make."""
    late_ns = float(epoch_begin_waits(evidence).late_ns.sum())
    return late_ns >= _MOSTLY * float(evidence.steps.data_wait_ns.sum()) > 0


def _first_batch_title(evidence: Evidence) -> str:
    making_ns = epoch_begin_waits(evidence).making_ns
    return (
        f"the first batch of an epoch takes {making_ns[making_ns > 0].mean() / 1e9:.1f} s to make"
    )


def _first_batch_cause(evidence: Evidence) -> Cause | None:
    """Return the code in which workers are while an epoch's first step waits."""
    first = evidence.steps.of(evidence.steps.starts_loader)
    times = {rank: first.times_of(rank) for rank in first.ranks}
    return making_cause(evidence, tuple(samples_during(evidence.making_samples, times)))


def _first_batch_remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    late_ns = epoch_begin_waits(evidence).late_ns
    prediction = predict_without(evidence, late_ns / 2, late_ns * 0.99)
    how = (
        "List and open files, fill buffers and read tables once, before the epochs begin, not in "
        "each __iter__ or first __getitem__. Half to all of the wait is taken to go."
    )
    return (
        predicted_remedy("sooner-first-batch", "a first batch like the others", prediction, how),
    )


def _finding_without_loader(evidence: Evidence) -> Finding | None:
    total = sum(sample.wall_ns for sample in evidence.rank_samples)
    making = [sample for sample in evidence.rank_samples if _is_making_data(sample)]
    place = find_hotspot(making, total)
    share = sum(sample.wall_ns for sample in making) / max(total, 1.0)
    waited = evidence.steps.data_wait_share
    if place is None or max(share, waited) < WARNING:
        return None
    cause = place.cause()
    does = "makes its data itself" if place.cpu_share >= _COMPUTES else "itself waits for its data"
    title, remedies = f"the script {does}", first_loader_remedies(evidence, share, place.cpu_share)
    if place.cpu_share >= _COMPUTES:
        remedies += _without_code_remedies(evidence, cause, making, total)
    if evidence.unfollowed is not None:
        title, remedies = "the script waits, for its loader or in code of its own", ()
    return evidence.finding(
        f"{title}: {cause} takes {place.share:.0%} of the time",
        max(share, waited) * evidence.steps.total_seconds,
        {"share_of_step_time": share, "cpu_share_there": place.cpu_share},
        cause=cause,
        remedies=remedies,
    )


_SAMPLED = 0.05
"""How far the time of code is off, as it is sampled."""


def _without_code_remedies(
    evidence: Evidence, cause: Cause, making: Sequence[StackSample], total_ns: float
) -> tuple[Remedy, ...]:
    """Return what it would give if a function, with all that it calls, took no time in steps."""
    function = (cause.file, cause.function.partition(" > ")[0])
    inside = [each for each in making if any(f.function_id == function for f in each.frames)]
    share = sum(sample.wall_ns for sample in inside) / max(total_ns, 1.0)
    least, most = (min(share * factor, 0.99) for factor in (1.0 - _SAMPLED, 1.0 + _SAMPLED))
    wall = evidence.steps.wall_ns
    prediction = predict_without(evidence, wall * least, wall * most)
    if prediction.speedup < WORTH_IT:
        return ()
    how = f"Do it once before training, or look for a cheaper way to do the same ({cause.place})."
    change = f"no {cause.name or cause.place} in the training loop"
    return (predicted_remedy("move-code", change, prediction, how),)


def _is_making_data(sample: StackSample) -> bool:
    return sample.own_frame.is_user and not (runs_model(sample) or is_device_sync(sample))


_LEFT_BY_UINT8 = 0.25
"""Of handing over float32, as uint8."""
_MANY_TENSORS_NS = 5e6
"""CPU time of the rank to read a batch, from which on it is of many tensors, or of objects: a
tensor goes by handle, which takes 0.4 ms of it (`_HANDOFF_NS` in `prediction.py`), however large it
is."""


@rule
def check_slow_transfer(evidence: Evidence) -> Finding | None:
    """Handing batches over takes long: pickling, copies to shared memory, unpacking in the rank.

    Fires where data wait is at least 5 % of step time and either a worker takes longer to send
    a batch than to make one (a thread sends while the next is made, so less does not delay it),
    and is busy or needs more than 2 ms for it, or a rank that finds a batch ready still waits
    5 % of a step for it. Tensors go by handle in well under a millisecond; lists of Python
    objects do not. Where other jobs fill the host's cores, the wait for a ready batch may be
    one for a core, and does not count; where they leave less than one core idle, the calmest
    tenth of these waits counts. Where the accelerator's own clock is recorded, such a wait
    costs no more than the accelerator waits a batch.

    Up to 2 ms a batch is the handoff at its best (see `data_wait.py`): that is reported
    from 10 % of a step on, and never as more than a warning; below, `data-wait` says that steps
    are short.
    """
    work, loader = evidence.work, evidence.loader
    if not evidence.starved or work is None or loader is None or loader.workers == 0:
        return None
    send = float(work.column("send_ns").sum() / max(work.column("wall_ns").sum(), 1.0))
    sends_slowly = send >= 1.0 and (
        evidence.workers_busy or float(work.column("send_ns").mean()) > HANDOFF_NS
    )
    taken_ns, unpack_ns = ready_handoff_ns(evidence)
    unpack = unpack_ns / max(float(evidence.steady_steps.wall_ns.mean()), 1.0)
    if evidence.others_fill_cores:
        unpack = 0.0
    usual = not sends_slowly and taken_ns <= HANDOFF_NS
    if not sends_slowly and unpack < (SERIOUS if usual else WARNING):
        return None
    by_send = evidence.flow_wait_seconds * (1.0 - 0.5 / send) if sends_slowly else 0.0
    by_unpack = evidence.steady_steps.total_seconds * unpack if unpack >= WARNING else 0.0
    seconds = min(max(by_send, by_unpack), evidence.flow_wait_seconds)
    title = "handing batches from the workers to the rank takes long"
    if usual:
        title = f"handing a batch to the rank takes {unpack:.0%} of a step, as steps are short"
    return evidence.finding(
        title,
        seconds,
        {
            "send_over_make": send,
            "send_ms": float(work.column("send_ns").mean() / 1e6),
            "wait_for_ready_batch_ms": taken_ns / 1e6,
            "wait_for_ready_batch_share": unpack,
            **evidence.script_data_wait,
        },
        remedies=_tensor_remedies(evidence, work),
        severity="warning" if usual else evidence.severity(seconds),
    )


def _tensor_remedies(evidence: Evidence, work: BatchWork) -> tuple[Remedy, ...]:
    """Return the effect of few tensors in place of many, of objects, or of larger ones.

    uint8 in place of float32 leaves a quarter of the handing over. Few tensors go by handle, which
    takes a fraction of a millisecond; of many, the rank need not read the rest. How much of the
    sending is theirs, and how much that of their bytes, is not known.
    """
    simulator = evidence.simulator
    if simulator is None:
        return ()
    measured = simulator.measured
    wall, send = work.column("wall_ns"), work.column("send_ns")
    waiting = np.maximum(work.service_ns - work.column("cpu_ns"), 0.0)
    held_up = float(np.maximum(send - wall, 0.0).sum() / max(waiting.sum(), 1.0))
    most = 1.0
    if measured.taking_cpu_ns >= _MANY_TENSORS_NS:
        most = HANDOFF_NS / measured.taking_ns
    prediction = simulator.predict(
        *(
            PipelineChange(
                capped_share=held_up,
                capped_ns=float(np.maximum(send * left - wall, 0.0).mean()),
                consume_saved_ns=measured.taking_ns * (1.0 - min(left, most)),
                consume_cpu_added_ns=-measured.taking_cpu_ns * (1.0 - min(left, most)),
                sending_saved=1.0 - left,
            )
            for left in (_LEFT_BY_UINT8, 0.0)
        )
    )
    how = (
        "Hand over few tensors, uint8 rather than float32, and no lists of Python objects. A "
        "tensor's handle comes from a thread of the worker, which waits while Python code runs "
        "there: torch.multiprocessing.set_sharing_strategy('file_system') does without, and "
        "pin_memory=True takes it off the rank. Three quarters to all of the handing over is taken "
        "to go."
    )
    return (predicted_remedy("tensors", "batches of few tensors", prediction, how),)
