"""Remedies on the accelerator's side: pinned copies, overlapped copies, bigger batches."""

from __future__ import annotations

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Remedy
from headrace.observe.doctor.remedies import predict_without, predicted_remedy
from headrace.observe.whatif.prediction import PipelineChange, Prediction
from headrace.observe.whatif.train_steps import fixed_cost_ns

_PINNED_SAVES = (1 / 3, 0.8)
"""Share of a copy from pageable memory that pinned memory saves, at least and at most.

Pageable memory goes through a buffer of the driver: 2 to 10 GB/s, where the link alone does 5 (PCIe
2) to 50 (PCIe 5)."""
_OVERLAP_SAVES = (0.5, 1.0)
"""Share of a copy that overlapping it with the step saves: both use the device's memory."""
_TWICE = 2.0


def faster_copies(
    evidence: Evidence, at: str, *, pinned: bool, blocking: bool
) -> tuple[Remedy, ...]:
    """Return what pinned memory would give, and asynchronous copies in addition.

    `at` is where the script copies, as " at train.py:40", or empty; `pinned`: all that it copies
    is pinned already; `blocking`: the script waits for some copies, or that is unknown.
    """
    remedies: list[Remedy] = []
    if not pinned:
        remedies.append(_pinning(evidence, at))
    if blocking:
        remedies.append(
            predicted_remedy(
                "asynchronous-copies",
                "asynchronous copies" if pinned else "pinned, asynchronous copies",
                # At most the rank goes on at once, and the copy is done when it is needed.
                _predict_less_copying(evidence, (0.0 if pinned else _PINNED_SAVES[0], 1.0)),
                f"Copy with .to(device, non_blocking=True){at}, from pinned memory.",
            )
        )
    return tuple(remedies)


def overlapped_copies(evidence: Evidence, at: str) -> Remedy:
    """Return what copying the next batch during the device's work on this one would give."""
    return predicted_remedy(
        "copies-beside",
        "copies beside the step",
        _predict_less_copying(evidence, _OVERLAP_SAVES),
        f"Copy the next batch{at} on a stream of its own while the device is at this one, as "
        "headrace.DataLoader(device=...) does. Half to all of the copy is taken to be hidden.",
    )


def _pinning(evidence: Evidence, at: str) -> Remedy:
    loader = evidence.loader
    if loader is not None and loader.pinned:
        loader = None  # what the script copies is not the loader's pinned batch
    if loader is not None:
        how = f"Give the DataLoader{loader.place} pin_memory=True."
    else:
        how = f"Copy from page-locked memory{at}: .pin_memory() beforehand, in another thread."
    return predicted_remedy(
        "pinning",
        "pinned memory",
        _predict_less_copying(evidence, _PINNED_SAVES),
        f"{how} A copy from pinned memory is taken to last 1/5 to 2/3 as long.",
        loader.overridden("pin_memory", 1) if loader is not None else (),
    )


def bigger_batch_remedy(evidence: Evidence, idle_share: float) -> Remedy:
    """Return what twice the batch size would give a device that is idle for a share of the steps.

    A step's fixed cost is fitted to steps of different sizes, if there are some; otherwise it is
    assumed to be half to all of the time in which the device is idle.
    """
    fixed = fixed_cost_ns(evidence.steps)
    basis = "as steps of different sizes tell"
    if fixed is None:
        own = evidence.steps.wall_ns - evidence.steps.data_wait_ns
        idle = float((own / evidence.steps.batches).mean()) * idle_share
        fixed = (idle / 2, idle)
        basis = "half to all of the time in which the device is idle"
    return predicted_remedy(
        "bigger-batch",
        "twice the batch size",
        predict_twice_the_batch(evidence, fixed),
        "Raise batch_size while memory allows it, or use torch.compile or CUDA graphs. What a step "
        f"costs whatever its batch is taken to be {fixed[0] / 1e6:.1f} to {fixed[1] / 1e6:.1f} ms, "
        f"{basis}.",
    )


def predict_twice_the_batch(evidence: Evidence, fixed_ns: tuple[float, float]) -> Prediction:
    """Return what twice the batch size would give, by a batch's fixed cost, least and most."""
    if evidence.simulator is None:
        # Two batches in one pay the fixed cost once.
        least, most = (evidence.steps.batches * fixed * (1 - 1 / _TWICE) for fixed in fixed_ns)
        return predict_without(evidence, least, most)
    least_change, most_change = (
        PipelineChange(batch_factor=_TWICE, fixed_consume_ns=fixed) for fixed in fixed_ns
    )
    return evidence.simulator.predict(least_change, most_change)


def _predict_less_copying(evidence: Evidence, saved: tuple[float, float]) -> Prediction:
    copy = evidence.steps.copy_ns
    if evidence.simulator is None:
        return predict_without(evidence, copy * saved[0], copy * saved[1])
    copy_ns = float((copy / evidence.steps.batches).mean())
    least, most = (PipelineChange(consume_saved_ns=copy_ns * share) for share in saved)
    return evidence.simulator.predict(least, most)
