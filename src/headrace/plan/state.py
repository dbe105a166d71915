"""All that must be kept of an epoch to go on with it: a position, and what fixes the order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from headrace.core.errors import CheckpointError, DatasetError

STATE_VERSION = 1
"""Raised whenever the same numbers would give another order, or a field changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """Where an epoch stands. Valid at any world size, worker count and global batch size.

    Attributes:
        version: Of the order's arithmetic; another version's state is refused.
        fingerprint: Of the dataset.
        seed: The user's.
        epoch: Counted from 0.
        position: Samples of this epoch that all ranks together have had.
        lanes: Lane count of this epoch's order.
        window: Window of this epoch's order, in samples.
        global_batch: Samples of a global batch when this was written; it may change on resume.
        shuffle: Whether the order is shuffled.
    """

    version: int = STATE_VERSION
    fingerprint: str
    seed: int
    epoch: int
    position: int
    lanes: int
    window: int
    global_batch: int
    shuffle: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; under 1 KB as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> PlanState:
        """Return the state that `to_dict` wrote.

        Raises:
            CheckpointError: Fields are missing, unknown or of another type, or the version is not
                this one's.
        """
        version = entries.get("version")
        if version != STATE_VERSION:
            raise CheckpointError(
                f"The loader state has version {version!r}, and this Headrace reads version "
                f"{STATE_VERSION}: the order would differ. Finish the epoch with the Headrace that "
                f"wrote it, or begin a new epoch without the state."
            )
        kinds = {field.name: _KINDS[str(field.type)] for field in fields(cls)}
        wrong = sorted(
            name
            for name in kinds.keys() | entries.keys()
            if name not in kinds or type(entries.get(name)) is not kinds[name]
        )
        if wrong:
            raise CheckpointError(
                f"The loader state does not fit: {', '.join(wrong)} missing, unknown or of the "
                f"wrong type. It must hold {', '.join(kinds)}, as state_dict() wrote them."
            )
        return cls(**entries)

    def check_dataset(self, fingerprint: str) -> None:
        """Raise DatasetError where the state was written over another dataset."""
        if fingerprint != self.fingerprint:
            raise DatasetError(
                f"The loader state belongs to dataset {self.fingerprint}, but this one is "
                f"{fingerprint}. Open the dataset of that run, or begin a new epoch without the "
                f"state."
            )


_KINDS: dict[str, type] = {"int": int, "str": str, "bool": bool}
