"""Handing batches over takes long: pickling, copies to shared memory, unpacking in the rank.

Fires where data wait is at least 5 % of step time and either a worker takes longer to hand a batch
over than to make one (a thread does it beside the making, so less does not hold it up), or a rank
that finds a batch ready still waits 5 % of a step for it. Tensors go by handle in well under a
millisecond; lists of Python objects do not. Where other jobs fill the host's cores, the wait for a
ready batch may be one for a core, and says nothing.
"""

from __future__ import annotations

from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.model import Finding, Remedy
from headrace.observe.whatif.measured import wait_for_ready_ns

RULE = "slow-transfer"
_SEND_SHARE = 1.0


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    work, loader = evidence.work, evidence.loader
    if not evidence.starved or work is None or loader is None or loader.workers == 0:
        return None
    send = float(work.column("send_ns").sum() / max(work.column("wall_ns").sum(), 1.0))
    unpack_ns = wait_for_ready_ns(evidence.fetches, loader.number, loader.workers)
    unpack = unpack_ns / max(float(evidence.flowing.wall_ns.mean()), 1.0)
    if evidence.others_fill_cores:
        unpack = 0.0
    if send < _SEND_SHARE and unpack < WARNING:
        return None
    by_send = evidence.flow_wait_seconds * (1.0 - 0.5 / send) if send >= _SEND_SHARE else 0.0
    by_unpack = evidence.flowing.total_seconds * unpack if unpack >= WARNING else 0.0
    seconds = min(max(by_send, by_unpack), evidence.flow_wait_seconds)
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title="handing batches from the workers to the rank takes long",
        seconds_lost=seconds,
        evidence={
            "send_over_make": send,
            "send_ms": float(work.column("send_ns").mean() / 1e6),
            "wait_for_ready_batch_ms": unpack_ns / 1e6,
            "wait_for_ready_batch_share": unpack,
        },
        remedies=(
            Remedy(
                name="tensors",
                change="batches of few tensors",
                how="Hand over few tensors, uint8 rather than float32, and no lists of Python "
                "objects. A tensor's handle comes from a thread of the worker, which waits while "
                "Python code runs there: torch.multiprocessing.set_sharing_strategy("
                "'file_system') does without, and pin_memory=True takes it off the rank.",
            ),
        ),
    )
