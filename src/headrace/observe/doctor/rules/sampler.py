"""The rule about samplers: what the rank does itself while it asks for a batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.observe.doctor.evidence import WARNING, Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.remedies import WORTH_IT, predict_without, predicted_remedy
from headrace.observe.doctor.sampler_stacks import (
    cut_to_sampler,
    lists_all_indices,
    sampler_name,
    within_sampler,
)
from headrace.observe.doctor.stack_samples import StackSample, find_hotspot

_FEWEST_SHARE = 0.5
"""The line of a sampler is named if stacks show it for at least this share of its recorded time."""


@rule
def check_slow_sampler(evidence: Evidence) -> Finding | None:
    """The sampler, which the rank itself asks for the next batch's indices, takes long.

    Fires where a loader's sampler or batch sampler takes at least 5 % of step time and the
    accelerator waits for data as long. It runs in the training process, within `next()`, with
    workers too, so that their number changes nothing. A list of all indices of a large dataset, as
    torch's RandomSampler makes it at the begin of an epoch, counts as well.
    """
    if not evidence.enough or evidence.loader is None:
        return None
    steps, spent = evidence.steps, evidence.sampler_ns
    share = float(spent.sum() / max(steps.wall_ns.sum(), 1.0))
    if share < WARNING:
        return None
    inner = tuple(part for sample in evidence.rank_samples if (part := within_sampler(sample)))
    cause = _sampler_cause(evidence, inner, share)
    named = f"the sampler {cause}" if cause is not None else "the sampler"
    starts = float(spent[steps.starts_loader].sum() / max(spent.sum(), 1.0))
    return evidence.finding(
        f"{named} takes {share:.0%} of step time in the rank itself, whatever the workers do",
        share * steps.total_seconds,
        {
            "data_wait_share": steps.data_wait_share,
            "sampler_share": share,
            "sampler_ms_a_batch": float(spent.sum() / max(steps.batches.sum(), 1.0) / 1e6),
            "share_of_it_as_epochs_begin": starts,
            "workers": evidence.loader.workers,
        },
        cause=cause,
        remedies=_sampler_remedies(evidence, cause, inner),
    )


def _sampler_cause(
    evidence: Evidence, inner: tuple[StackSample, ...], share: float
) -> Cause | None:
    """Return the user's line in the sampler, or a library's sampler at the loader's line."""
    loader = evidence.loader
    assert loader is not None  # checked by the caller
    seen_ns = sum(sample.wall_ns for sample in inner)
    total_ns = sum(sample.wall_ns for sample in evidence.rank_samples)
    place = (
        find_hotspot(cut_to_sampler(inner)) if seen_ns >= _FEWEST_SHARE * share * total_ns else None
    )
    if place is not None and place.frame.is_user:
        return replace(place.cause(), share=share)
    function = sampler_name(inner) if place is not None else ""
    if not (loader.file or function):
        return None
    return Cause(file=loader.file, line=loader.line, function=function, share=share)


def _sampler_remedies(
    evidence: Evidence, cause: Cause | None, inner: tuple[StackSample, ...]
) -> tuple[Remedy, ...]:
    """Return what it would give if half to nearly all of the sampler's time went."""
    spent = evidence.sampler_ns
    prediction = predict_without(evidence, spent / 2, np.asarray(spent * 0.99))
    if prediction.speedup < WORTH_IT:
        return ()
    where = f" ({cause.place})" if cause is not None and cause.place else ""
    if lists_all_indices(inner):
        change = "a shuffled order that is computed as it goes"
        how = (
            "torch's sampler makes a list of all indices each time that an iterator is made"
            f"{where}. headrace.DataLoader computes its order, shuffled, as it goes, and keeps no "
            "list. Or keep one iterator, where the loop is left before the epoch's end."
        )
    else:
        change = "batches drawn up before the epoch"
        how = (
            f"Draw the batches up once, before the epoch, as a list of lists of indices{where}: as "
            "batch_sampler it costs nothing. Or draw them in a cheaper way. Workers do not help."
        )
    how += " Half to all of the sampler's time is taken to go."
    return (predicted_remedy("sampler", change, prediction, how),)
