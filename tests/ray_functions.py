"""What the tests have Ray Data do; Ray's processes import it by its name."""

from __future__ import annotations

from typing import Any

import numpy as np


def mixed(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    of_rows = range(len(batch["id"]))
    return {
        "id": batch["id"],
        "image": np.stack([np.full((3, 4), value, np.float32) for value in batch["id"]]),
        "ragged": [np.arange(value % 3) for value in batch["id"]],
        "name": [f"row {batch['id'][row]}" for row in of_rows],
    }


def failing(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if 7 in batch["id"]:
        raise ValueError("seven is not liked")
    return batch


def of_two_sizes(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return square pictures, of 2 or 3 pixels a side by their numbers."""
    return {"picture": [np.full((2 + n % 2, 2 + n % 2), n) for n in batch["id"]]}
