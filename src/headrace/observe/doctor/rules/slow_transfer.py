"""The rule slow-transfer: handing batches from the workers to the rank takes long."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.batch_handoff import HANDOFF_NS, ready_handoff_ns
from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence
from headrace.observe.doctor.findings import Finding, Remedy
from headrace.observe.doctor.remedies import predicted_remedy
from headrace.observe.doctor.rule import rule
from headrace.observe.whatif.measured_pipeline import BatchWork
from headrace.observe.whatif.prediction import PipelineChange

_SEND_SHARE = 1.0


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

    Up to 2 ms a batch is the handoff at its best (see `batch_handoff.py`): that is reported
    from 10 % of a step on, and never as more than a warning; below, `data-wait` says that steps
    are short.
    """
    work, loader = evidence.work, evidence.loader
    if not evidence.starved or work is None or loader is None or loader.workers == 0:
        return None
    send = float(work.column("send_ns").sum() / max(work.column("wall_ns").sum(), 1.0))
    sends_slowly = send >= _SEND_SHARE and (
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
    return evidence.finding(
        (
            f"handing a batch to the rank takes {unpack:.0%} of a step, as steps are short"
            if usual
            else "handing batches from the workers to the rank takes long"
        ),
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
    """Return the effect of tensors in place of objects: handoffs take at most half as long."""
    simulator = evidence.simulator
    if simulator is None:
        return ()
    unpack_ns = simulator.measured.taking_ns
    wall, send = work.column("wall_ns"), work.column("send_ns")
    waiting = np.maximum(work.service_ns - work.column("cpu_ns"), 0.0)
    held_up = float(np.maximum(send - wall, 0.0).sum() / max(waiting.sum(), 1.0))
    half = float(np.maximum(send / 2 - wall, 0.0).mean())
    prediction = simulator.predict(
        PipelineChange(capped_share=held_up, capped_ns=half, consume_saved_ns=unpack_ns / 2),
        PipelineChange(capped_share=held_up, capped_ns=0.0, consume_saved_ns=unpack_ns),
    )
    how = (
        "Hand over few tensors, uint8 rather than float32, and no lists of Python objects. A "
        "tensor's handle comes from a thread of the worker, which waits while Python code runs "
        "there: torch.multiprocessing.set_sharing_strategy('file_system') does without, and "
        "pin_memory=True takes it off the rank. Half to all of the handing over is taken to go."
    )
    return (predicted_remedy("tensors", "batches of few tensors", prediction, how),)
