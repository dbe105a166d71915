"""Reads the ledgers of many attempts and counts every sample of every epoch."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the ledgers say.

    Attributes:
        attempts: How many attempts wrote a ledger.
        counted: Samples that count: of steps up to what the next attempt restored.
        lost: (epoch, key) that never came.
        duplicated: (epoch, key) that came more than once.
        replaced: How many counted samples stand in for a bad one.
        finished: The last attempt came to the end.
    """

    attempts: int
    counted: int
    lost: list[tuple[int, str]]
    duplicated: list[tuple[int, str]]
    replaced: int
    finished: bool


def audit(folder: Path, keys: list[str], epochs: int, replacements: dict[str, str]) -> Audit:
    """Count each attempt's samples up to the checkpoint that the next one restored.

    Args:
        folder: Where the ledgers lie.
        keys: The keys of all samples.
        epochs: How many epochs were trained.
        replacements: Bad sample's key to the key of the sample that stands in for it.
    """
    ledgers = _by_attempt(folder)
    counts: Counter[tuple[int, str]] = Counter()
    for number, entries in enumerate(ledgers):
        limit = _restored_after(ledgers, number)
        for entry in entries:
            if "step" in entry and (limit is None or entry["step"] <= limit):
                counts.update((entry["epoch"], key) for key in entry["keys"])
    expected: Counter[tuple[int, str]] = Counter(
        (epoch, replacements.get(key, key)) for epoch in range(epochs) for key in keys
    )
    return Audit(
        attempts=len(ledgers),
        counted=counts.total(),
        lost=sorted((expected - counts).elements()),
        duplicated=sorted((counts - expected).elements()),
        replaced=epochs * len(replacements),
        finished=any("done" in entry for entry in ledgers[-1]),
    )


def _by_attempt(folder: Path) -> list[list[dict]]:
    numbers = sorted({path.name.split("-")[1] for path in folder.glob("ledger-*.jsonl")})
    return [
        [
            json.loads(line)
            for path in sorted(folder.glob(f"ledger-{number}-*.jsonl"))
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")  # a line that the kill cut short was never followed by a step
        ]
        for number in numbers
    ]


def _restored_after(ledgers: list[list[dict]], number: int) -> int | None:
    """Return the step that the next attempt which got that far restored; None for the last."""
    for later in ledgers[number + 1 :]:
        steps = {entry["restored"] for entry in later if "restored" in entry}
        if steps:
            assert len(steps) == 1, f"ranks restored different steps: {steps}"
            return steps.pop()
    return None
