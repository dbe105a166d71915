"""The rule data-wait: steps wait for data, and no narrower rule says why."""

from __future__ import annotations

from headrace.observe.doctor.batch_handoff import fewer_handoffs_remedies, is_handoff_bound
from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.remedies import (
    WORTH_IT,
    first_loader_remedies,
    making_cause,
    predict_without,
    predicted_remedy,
)
from headrace.observe.doctor.rule import rule
from headrace.observe.doctor.stack_activity import is_device_sync, runs_model
from headrace.observe.doctor.stack_samples import StackSample, find_hotspot

_COMPUTES, _WAITS = 0.3, 0.4


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

    With a loader, the records still show two cases: workers off the CPU for 40 % of their time
    wait for something unknown; idle workers have their batches ready, so handing them over
    takes long. Where others fill the host's cores meanwhile, the rank waits for a core: nothing
    in the script would change that, so it is a warning however long it takes.

    Handing over a ready batch takes up to 2 ms (see `batch_handoff.py`). Where workers are idle
    and waits exceed that by less than 5 % of step time, the loader keeps up, and its steps are
    short: no fault below 10 % of step time, and a warning above, as larger batches help. Where
    others leave less than one core idle, the handoff waits for a core at times; then only the
    part of a longer wait in which a worker made a batch counts.
    """
    if not evidence.enough:
        return None
    if evidence.loader is None:
        return _finding_without_loader(evidence)
    share = evidence.data_wait_share
    if share < WARNING:
        return None
    if is_handoff_bound(evidence) and (share < SERIOUS or not evidence.others_fill_cores):
        return _short_steps_finding(evidence)
    loader, work = evidence.loader, evidence.work
    title, cause = _title_and_cause(evidence)
    idle = work is not None and not evidence.workers_busy
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
        },
        cause=cause,
        remedies=_in_time_remedies(evidence),
        severity="warning" if idle and evidence.others_fill_cores else severity,
    )


def _in_time_remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what it would give if half to all of the wait went."""
    waited = evidence.steps.data_wait_ns
    prediction = predict_without(evidence, waited / 2, waited * 0.99)
    if prediction.speedup < WORTH_IT:
        return ()
    name, change = "in-time", "batches that are there in time"
    how = "No rule knows what holds the batches up: the line and the evidence say where to look."
    if evidence.others_fill_cores:
        name, change = "own-cores", "cores of its own"
        how = "Other jobs of the host take the cores: move those, or this one."
    how += " Half to all of the wait is taken to go."
    return (predicted_remedy(name, change, prediction, how),)


def _short_steps_finding(evidence: Evidence) -> Finding:
    steps, share = evidence.steps, evidence.data_wait_share
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
        built = Cause(file=loader.file, line=loader.line, share=evidence.data_wait_share)
    if work is not None and not evidence.workers_busy:
        if evidence.others_fill_cores:
            return f"workers are idle, but {evidence.others_use}", None
        taking = f"taking their batches from the loader{loader.place} takes long"
        return f"workers are idle, but {taking}", built
    if work is None or not work.cpu_measured or 1.0 - work.cpu_share < _WAITS:
        return f"the loader{loader.place} does not keep up", built
    waiting = making_cause(evidence, evidence.making_samples, off_cpu_only=True)
    where = f", most of it in {waiting}" if waiting is not None else ""
    title = f"workers wait, off the CPU, {1.0 - work.cpu_share:.0%} of their time{where}"
    return title, waiting or built


def _finding_without_loader(evidence: Evidence) -> Finding | None:
    total = sum(sample.wall_ns for sample in evidence.rank_samples)
    making = [sample for sample in evidence.rank_samples if _is_making_data(sample)]
    place = find_hotspot(making, total)
    share = sum(sample.wall_ns for sample in making) / max(total, 1.0)
    waited = evidence.data_wait_share
    if place is None or max(share, waited) < WARNING:
        return None
    cause = place.cause()
    seconds = max(share, waited) * evidence.steps.total_seconds
    does = "makes its data itself" if place.cpu_share >= _COMPUTES else "itself waits for its data"
    return evidence.finding(
        f"the script {does}: {cause} takes {place.share:.0%} of the time",
        seconds,
        {"share_of_step_time": share, "cpu_share_there": place.cpu_share},
        cause=cause,
        remedies=first_loader_remedies(evidence, share, place.cpu_share),
    )


def _is_making_data(sample: StackSample) -> bool:
    if not sample.own_frame.is_user:
        return False
    return not (runs_model(sample) or is_device_sync(sample))
