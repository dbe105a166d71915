"""What is remembered of a loader: under 1 KB, the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core.errors import CheckpointError
from headrace.plan.state import PlanState


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCount:
    """Where an epoch of a given sampler or of an iterable dataset stands.

    Attributes:
        epoch: The epoch.
        position: How many of this rank's batches were delivered.
        seed: The loader's seed.
        world: The world size.
        batch_size: Samples a batch on this rank.
        workers: That an iterable dataset is shared among; 0 for a sampler.
        shuffled: How a Ray Dataset's samples are shuffled together: in windows of so many; 0: as
            they are.
    """

    epoch: int
    position: int
    seed: int
    world: int
    batch_size: int
    workers: int
    shuffled: int = 0

    def check_same(self, loader: BatchCount) -> None:
        """Raise CheckpointError unless a loader counts in the same batches."""
        names = {
            "world": "rank(s)",
            "batch_size": "sample(s) a batch",
            "workers": "worker(s)",
            "shuffled": "sample(s) shuffled together",
        }
        changed = [name for name in names if getattr(self, name) != getattr(loader, name)]
        if changed:
            was, now = (
                ", ".join(f"{getattr(count, name)} {names[name]}" for name in changed)
                for count in (self, loader)
            )
            raise CheckpointError(
                f"This state was taken with {was}, and the loader has {now}. The place of a given "
                "sampler, or of an iterable dataset, is a number of batches, which are others "
                "then. Make the loader as it was; a map-style dataset without a sampler goes on "
                "at any of these."
            )


LoaderState = PlanState | BatchCount


def state_to_dict(state: LoaderState) -> dict[str, Any]:
    """Return the state as plain numbers and strings."""
    if isinstance(state, PlanState):
        return {"kind": "plan", **state.to_dict()}
    return {"kind": "batches", **asdict(state)}


def state_from_dict(entries: Mapping[str, Any], *, planned: bool) -> LoaderState:
    """Return the state that `state_to_dict` wrote.

    Raises:
        CheckpointError: It is damaged, or of a loader of the other kind.
    """
    rest = dict(entries)
    kind = rest.pop("kind", None)
    if kind != ("plan" if planned else "batches"):
        has = "no sampler of its own" if planned else "its own sampler or an iterable dataset"
        raise CheckpointError(
            f"This state is of kind {kind!r}, but the loader has {has}. Make the loader with the "
            f"arguments of the run that saved the state."
        )
    if kind == "plan":
        return PlanState.from_dict(rest)
    try:
        return BatchCount(**rest)
    except TypeError as error:
        raise CheckpointError(f"This is no state of a loader: {error}.") from None
