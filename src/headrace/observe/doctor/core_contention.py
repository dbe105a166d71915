"""Waits of workers for a core that other programs have, told apart from waits for storage.

A process off the CPU waits for storage, or for a core: a stack does not say for which. Where the
host has no core to spare, code that only computes is off the CPU for the same reason; and what was
read is no reason, where neither disks nor the network delivered it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Cause
from headrace.observe.doctor.stack_samples import (
    StackSample,
    awaits_own_work,
    is_lock,
    is_reading,
    is_sleep,
    off_cpu_ns,
)
from headrace.observe.whatif.measured_pipeline import BatchWork

_LEAST_SHARE = 0.05
"""Code that computes shows what a core costs if it takes this share of making batches."""
_FROM_MEMORY = 0.2
"""If disks and network delivered less than this part of what workers read, memory did the rest."""
_MOST_TURNS = 10.0
"""A process among others that want its core waits for up to so many times its own CPU time; reads
that wait longer wait for what answers late, however little it delivers, as a file server does."""
_IN_TIME = 0.9
"""Batches that take no longer than this part of a step are there in time."""
_SOURCES = ("disk_read_bytes_per_s", "net_received_bytes_per_s")


def storage_wait_share(evidence: Evidence, samples: Iterable[StackSample]) -> float:
    """Return the share of making batches in which samples wait, without waits for a core, 0 to 1.

    On a host with a core to spare, all time off the CPU counts. Else code that reads is taken to
    wait for a core as long, for the CPU time it needs, as code that computes does.
    """
    seen = tuple(samples)
    total_ns = max(sum(sample.wall_ns for sample in evidence.making_samples), 1.0)
    off_ns = off_cpu_ns(seen)
    on_core = core_share(evidence)
    if on_core is not None:
        off_ns -= sum(sample.cpu_ns for sample in seen) * (1.0 - on_core) / max(on_core, 0.01)
    return max(off_ns, 0.0) / total_ns


def core_share(evidence: Evidence) -> float | None:
    """Return the share of its time that computing code of workers is on a core, 0 to 1.

    None where the host has cores to spare, or too little of such code was seen.
    """
    if not evidence.cores_short:
        return None
    total_ns = sum(sample.wall_ns for sample in evidence.making_samples)
    computing = [
        sample
        for sample in evidence.making_samples
        if not any(waits(sample) for waits in (is_reading, is_lock, is_sleep, awaits_own_work))
    ]
    wall_ns = sum(sample.wall_ns for sample in computing)
    if wall_ns < _LEAST_SHARE * total_ns or wall_ns <= 0:
        return None
    return min(sum(sample.cpu_ns for sample in computing) / wall_ns, 1.0)


def reads_come_from_memory(evidence: Evidence) -> bool:
    """Return whether other programs fill the cores, and what workers read was in memory already."""
    span, work, system = evidence.steps.span_ns, evidence.work, evidence.system
    if not evidence.others_fill_cores or span is None or work is None:
        return False
    if 1.0 - work.cpu_share > _MOST_TURNS * work.cpu_share:
        return False
    read_bytes = float(work.column("read_bytes").sum())
    inside = (system["t_ns"] >= span[0]) & (system["t_ns"] <= span[1])
    known = [name for name in _SOURCES if name in system]
    if not known or not inside.any() or read_bytes <= 0:
        return False
    rates = [system[name][inside].astype(np.float64) for name in known]
    delivered = sum(float(np.nanmean(np.maximum(rate, 0.0))) for rate in rates)
    return delivered * (span[1] - span[0]) / 1e9 < _FROM_MEMORY * read_bytes


def waits_for_cores(evidence: Evidence) -> bool:
    """Return whether other programs fill the cores, and workers off the CPU wait for one."""
    if not evidence.others_fill_cores:
        return False
    reading = [sample for sample in evidence.making_samples if is_reading(sample)]
    others = [s for s in evidence.making_samples if is_lock(s) or is_sleep(s)]
    total_ns = max(sum(sample.wall_ns for sample in evidence.making_samples), 1.0)
    if off_cpu_ns(others) / total_ns >= _FROM_MEMORY:
        return False
    return reads_come_from_memory(evidence) or storage_wait_share(evidence, reading) < _FROM_MEMORY


def keeps_up_without_others(evidence: Evidence) -> bool:
    """Return whether workers would make batches in time if other programs left them their cores."""
    simulator, loader = evidence.simulator, evidence.loader
    if simulator is None or loader is None or not loader.workers or not waits_for_cores(evidence):
        return False
    measured = simulator.measured
    making_ns = float(measured.service_cpu_ns.mean()) / max(measured.pipeline.workers, 1)
    return making_ns <= _IN_TIME * float(measured.consume_ns.mean())


def core_wait_title(evidence: Evidence, work: BatchWork, cause: Cause | None) -> str:
    """Return the title of a finding about such waits; `cause`: the code with most of the time."""
    waited = f"{1.0 - work.cpu_share:.0%} of"
    who = f"workers wait for a core {waited} their time"
    if evidence.loader is not None and evidence.loader.workers == 0:
        who = f"the rank waits for a core {waited} the time in which it makes batches"
    where = f", {cause.share:.0%} of it in {cause}" if cause is not None else ""
    return f"{who}{where}, as {evidence.others_use}"
