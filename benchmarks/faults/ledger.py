"""The oracle of the fault matrix: what each sample of a dataset is, and what a reader got."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

import headrace
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions


class LedgerError(Exception):
    """A sample was lost, came twice, or came with other bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reader has written down.

    Attributes:
        epochs: Of each, (key, digest of the image) in the order of delivery.
        seconds: Of each epoch, from the request for its first batch to its end.
        waits_s: Of each batch.
        replaced: Keys of damaged samples and of those in their places.
        error: The name of the error that ended it; "" where it came to its end.
        message: Of that error.
    """

    epochs: list[list[tuple[str, str]]]
    seconds: list[float]
    waits_s: list[float]
    replaced: dict[str, str]
    error: str
    message: str


def read_ledger(folder: Path) -> Reading:
    """Return what the reader in a folder has written."""
    content = json.loads((folder / "ledger.json").read_text())
    records = folder / "quarantine.jsonl"
    lines = records.read_text().splitlines() if records.exists() else []
    return Reading(
        epochs=[[(key, digest) for key, digest in epoch] for epoch in content["epochs"]],
        seconds=content["seconds"],
        waits_s=content["waits_s"],
        replaced={each["key"]: each["replacement_key"] for each in map(json.loads, lines)},
        error=content["error"],
        message=content["message"],
    )


def check(
    reading: Reading, digests: dict[str, str], epochs: int, bad: set[str] | None = None
) -> None:
    """Compare a reading with the samples that there are.

    Args:
        reading: What was read, to its end.
        digests: Of all samples, by key.
        epochs: How many were to be read.
        bad: Keys that must be replaced, and no others; None: whichever were reported.

    Raises:
        LedgerError: It differs.
    """
    if reading.error:
        raise LedgerError(f"ended by {reading.error}: {reading.message}")
    if bad is not None and set(reading.replaced) != bad:
        raise LedgerError(f"replaced {sorted(reading.replaced)} instead of {sorted(bad)}")
    all_keys = Counter(digests.keys())
    if len(reading.epochs) != epochs:
        raise LedgerError(f"{len(reading.epochs)} epochs instead of {epochs}")
    for number, epoch in enumerate(reading.epochs):
        seen = Counter(key for key, _ in epoch)
        lost, more = all_keys - seen, seen - all_keys
        # What is damaged on its way is so in one epoch, and not in another.
        is_known = lost.keys() <= reading.replaced.keys() and (bad is None or lost.keys() == bad)
        if not is_known or more != Counter(reading.replaced[key] for key in lost):
            raise LedgerError(f"epoch {number}: lost {sorted(lost)}, too often {sorted(more)}")
    check_bytes(reading, digests)


def check_bytes(reading: Reading, digests: dict[str, str]) -> None:
    """Raise LedgerError if a sample was delivered with other bytes than it has."""
    for number, epoch in enumerate(reading.epochs):
        changed = [key for key, digest in epoch if digests[key] != digest]
        if changed:
            raise LedgerError(f"epoch {number}: other bytes: {changed}")


def digest_of(image: np.ndarray) -> str:
    """Return a digest of an image's pixels."""
    return hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=8).hexdigest()


def make_dataset(
    folder: Path, url: str, count: int, *, seed: int, shard_bytes: int = 60_000
) -> dict[str, str]:
    """Pack `count` small images of noise to a URL; return each key's digest."""
    chance = np.random.default_rng(seed)
    for number in range(count):
        path = folder / "images" / f"class_{number % 3}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), chance.integers(0, 255, (24, 24, 3), np.uint8))
    pack(str(folder / "images"), url, PackOptions(shard_bytes=shard_bytes))
    return digests_of(url)


def digests_of(url: str) -> dict[str, str]:
    """Read a whole dataset sample by sample; return each key's digest."""
    dataset = headrace.ShardDataset(url)
    samples = (dataset[number] for number in range(len(dataset)))
    return {sample["__key__"]: digest_of(sample["jpg"]) for sample in samples}
