"""Steps wait for data, and no narrower rule says why.

Fires at 5 % of step time (10 % is serious, 20 % critical). Where the script has no DataLoader,
nothing marks its data wait; then the rank's own lines that run no part of torch, outside backward
and optimizer, count as such.
"""

from __future__ import annotations

import re

from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.model import Cause, Finding, Remedy
from headrace.observe.doctor.places import is_device_sync, is_sleep
from headrace.observe.doctor.stacks import Sighting, hottest

RULE = "data-wait"
_TORCH = re.compile(r"-packages/torch/(?!utils/data)|/torch/nn/|/torch/autograd/")
_NO_DATA = ("backward", "optimizer", "sync", "copy")


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    if not evidence.enough:
        return None
    if evidence.loader is None:
        return _without_loader(evidence)
    share = evidence.data_wait_share
    if share < WARNING:
        return None
    loader = evidence.loader
    return Finding(
        rule=RULE,
        severity=evidence.severity(evidence.steps.seconds("data_wait")),
        title=f"the loader{loader.place} does not keep up",
        seconds_lost=evidence.steps.seconds("data_wait"),
        evidence={"data_wait_share": share, "loader": loader.kind, "workers": loader.workers},
        cause=Cause(file=loader.file, line=loader.line, share=share) if loader.file else None,
    )


def _without_loader(evidence: Evidence) -> Finding | None:
    total = sum(sighting.wall_ns for sighting in evidence.rank_seen)
    making = [sighting for sighting in evidence.rank_seen if _makes_data(sighting)]
    place = hottest(making, total)
    share = sum(sighting.wall_ns for sighting in making) / max(total, 1.0)
    waited = evidence.data_wait_share
    if place is None or max(share, waited) < WARNING:
        return None
    cause = place.cause()
    seconds = max(share, waited) * evidence.steps.total_seconds
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"the script makes its data itself: {cause} takes {place.share:.0%} of the time",
        seconds_lost=seconds,
        evidence={"share_of_step_time": share, "cpu_share_there": place.cpu_share},
        cause=cause,
        remedies=(
            Remedy(
                name="loader",
                change="a DataLoader with workers",
                how="Put the making of one sample into a Dataset's __getitem__, and iterate over "
                "DataLoader(dataset, num_workers=...).",
            ),
        ),
    )


def _makes_data(sighting: Sighting) -> bool:
    if sighting.phase in _NO_DATA or not sighting.own_frame.is_user:
        return False
    # The model runs through torch's own frames; a sleep or a wait for the device makes no data.
    return not (sighting.passes(_TORCH) or is_sleep(sighting) or is_device_sync(sighting))
