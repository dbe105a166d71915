"""What taking over a batch costs that lies ready: a fixed cost of each, however fed the rank is."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.device_remedies import twice_the_batch
from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.model import Remedy
from headrace.observe.doctor.remedies import WORTH_IT, predicted

HAND_OVER_NS = 2e6
"""What taking a batch of few tensors from a worker takes at most: a queue, a handle and a mapping a
tensor. With torch's loader two tensors took 1.6 ms on a slow, calm host; fast ones take 0.2 ms."""


def is_handing_over(evidence: Evidence) -> bool:
    """Whether workers are idle, and a rank waits no longer than taking a batch over needs.

    Waits beyond that may be 5 % of step time, the lowest threshold of data wait.
    """
    if evidence.loader is None or evidence.work is None or evidence.workers_busy:
        return False
    steps = evidence.steps
    batches = np.maximum(steps.rows["batches"].astype(np.float64), 1.0)
    beyond = np.maximum(steps.phase_ns("data_wait") - HAND_OVER_NS * batches, 0.0)
    return float(beyond.sum()) < WARNING * float(steps.wall_ns.sum())


def fewer_hand_overs(evidence: Evidence, hand_over_ns: float) -> tuple[Remedy, ...]:
    """Return what larger batches would give.

    Args:
        evidence: What is known.
        hand_over_ns: What taking a batch over takes.
    """
    prediction = twice_the_batch(evidence, (hand_over_ns / 2, hand_over_ns))
    if prediction.speedup < WORTH_IT:
        return ()
    how = (
        "Raise batch_size while memory allows it. Half to all of taking a batch over is taken to "
        "cost the same whatever its size; all else of a step grows with it."
    )
    return (predicted("bigger-batch", "twice the batch size", prediction, how),)
