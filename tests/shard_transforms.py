"""What tests do to samples of shards, in a module that workers import without torch."""

from __future__ import annotations

from typing import Any

from headrace import ShardDataset


def fails_on_two(label: int) -> int:
    """Return the label; one of them is too much for it."""
    if label == 2:
        raise ZeroDivisionError("two")
    return label


class Tabled(ShardDataset):
    """A subclass with an attribute of its own."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.table = {"cls": 7}

    def __getitem__(self, sample: int) -> dict[str, Any]:
        return {"key": super().__getitem__(sample)["__key__"], **self.table}
