"""Workers are started anew each epoch, and the ranks wait for them."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.evidence import WARNING, Evidence, Loader
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.remedies import predicted, without

RULE = "workers-restarted"


def check(evidence: Evidence) -> Finding | None:
    """Workers are started anew each epoch, and the ranks wait for them.

    Fires where workers of the loader that feeds training were started at least twice and the
    steps in which it began again waited, beyond other steps, for at least 5 % of all step time.
    """
    loader, steps, rows = evidence.loader, evidence.steps, evidence.processes
    if not evidence.enough or loader is None or loader.persistent or loader.workers == 0:
        return None
    if not len(rows.get("role", ())):
        return None
    workers = (rows["role"] == "worker") & (rows["loader"] == loader.number)
    starts = [
        int(((rows["rank"] == rank) & (rows["worker"] == 0) & workers).sum())
        for rank in steps.ranks
    ]
    if min(starts, default=0) < 2 or not steps.starts_loader.any():
        return None
    wait = steps.data_wait_ns
    usual = float(np.median(wait[~steps.starts_loader])) if (~steps.starts_loader).any() else 0.0
    saved = np.where(steps.starts_loader, np.maximum(wait - usual, 0.0), 0.0)
    share = float(saved.sum() / max(steps.wall_ns.sum(), 1.0))
    if share < WARNING:
        return None
    is_made_anew = loader.constructed > max(starts) / 2
    each = float(saved[steps.starts_loader].mean()) / 1e9
    return Finding(
        rule=RULE,
        severity=evidence.severity(share * steps.total_seconds),
        title=f"starting the workers again takes {each:.1f} s an epoch, {share:.0%} of step time",
        seconds_lost=share * steps.total_seconds,
        evidence={
            "starts": max(starts),
            "seconds_each": each,
            "share_of_step_time": share,
            "workers": loader.workers,
            "constructed": loader.constructed,
        },
        remedies=(
            predicted(
                "persistent-workers",
                "persistent workers",
                without(evidence, saved),
                _how(loader, is_made_anew=is_made_anew),
                () if is_made_anew else loader.overridden("persistent_workers", 1),
            ),
        ),
    )


def _how(loader: Loader, *, is_made_anew: bool) -> str:
    if not is_made_anew:
        return f"Give the DataLoader{loader.place} persistent_workers=True."
    return (
        f"Construct the DataLoader{loader.place} once, before the epochs begin, and give it "
        f"persistent_workers=True: it is constructed {loader.constructed} times."
    )
