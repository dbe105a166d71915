"""How near does the plan's order come to a full permutation, and what does it cost to read?

    python benchmarks/shuffle_quality.py      # prints the tables of docs/shuffle.md

An ImageNet-sized dataset in its worst layout: 1,000 classes, sorted by class, 1,024 shards of
1,200 samples, so that a shard holds one class or two. Eight ranks of 32 make global batches of
256. Each order is made for two epochs and measured against a full permutation made by NumPy.
WebDataset is its own `shuffle` stage over shards dealt to 8 ranks of 4 workers.

Then a linear classifier learns for one epoch from each order: 1,000 noisy clusters, plain SGD with
a learning rate falling to zero, tested on fresh samples.

Every order and every number but the seconds is seeded: another machine prints the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from webdataset.filters import _shuffle as webdataset_shuffle

from headrace.sampling import Plan
from report import machine

CLASSES = 1000
SHARDS, SHARD_SIZE = 1024, 1200
SAMPLES = SHARDS * SHARD_SIZE
RANKS, RANK_BATCH = 8, 32
GLOBAL_BATCH = RANKS * RANK_BATCH
BATCHES = SAMPLES // GLOBAL_BATCH
SORTED_LABELS = np.arange(SAMPLES) * CLASSES // SAMPLES
PACKED_LABELS = np.random.default_rng(4000).permutation(SORTED_LABELS)
"""As `headrace data pack` lays samples out: shuffled over the shards."""

LEARNING_RATE, NOISE = 0.2, 2.0
"""The rate, of 8, 1 and 0.2, at which the classifier learns most from the full permutation."""

Epoch = np.ndarray
"""int64[batches, ranks, samples of a rank's batch]: the samples of one epoch, as they come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to order an epoch."""

    name: str
    make: Callable[[int], Epoch]


def full_permutation(epoch: int) -> Epoch:
    """All samples in one random order, as torch's RandomSampler draws them."""
    order = np.random.default_rng(1000 + epoch).permutation(SAMPLES)
    return order.reshape(BATCHES, RANKS, RANK_BATCH)


def shards_only(epoch: int) -> Epoch:
    """Permuted shards, dealt to the ranks and read from begin to end."""
    shards = np.random.default_rng(2000 + epoch).permutation(SHARDS)
    streams = shards.reshape(RANKS, -1)[:, :, None] * SHARD_SIZE + np.arange(SHARD_SIZE)
    return streams.reshape(RANKS, BATCHES, RANK_BATCH).swapaxes(0, 1)


def headrace(**arguments: int) -> Callable[[int], Epoch]:
    """The plan's order, with `arguments` of Plan."""

    def make(epoch: int) -> Epoch:
        plan = Plan(
            fingerprint="sorted", num_samples=SAMPLES, shard_sizes=[SHARD_SIZE] * SHARDS,
            seed=0, epoch=epoch, global_batch=GLOBAL_BATCH, **arguments,
        )  # fmt: skip
        return np.stack([plan.batch(g, 0, 1).reshape(RANKS, RANK_BATCH) for g in range(BATCHES)])

    return make


def webdataset(buffer: int, workers: int = 4) -> Callable[[int], Epoch]:
    """WebDataset's order: each worker of each rank shuffles its own shards through a buffer."""

    def make(epoch: int) -> Epoch:
        shards = np.random.default_rng(3000 + epoch).permutation(SHARDS)
        batches = np.empty((RANKS, workers, BATCHES // workers, RANK_BATCH), dtype=np.int64)
        for rank in range(RANKS):
            for worker in range(workers):
                mine = shards[rank::RANKS][worker::workers]
                rng = random.Random(f"{epoch} {rank} {worker}")
                stream = webdataset_shuffle(_samples_of(mine), bufsize=buffer, rng=rng)
                batches[rank, worker] = np.fromiter(stream, dtype=np.int64).reshape(-1, RANK_BATCH)
        # torch's DataLoader takes one batch from each worker in turn.
        return batches.transpose(2, 1, 0, 3).reshape(BATCHES, RANKS, RANK_BATCH)

    return make


def _samples_of(shards: np.ndarray) -> Iterator[int]:
    for shard in shards.tolist():
        yield from range(shard * SHARD_SIZE, (shard + 1) * SHARD_SIZE)


ARMS = (
    Arm(name="full permutation", make=full_permutation),
    Arm(name="Headrace (64 lanes, window 1 shard)", make=headrace()),
    Arm(name="Headrace, window 1/4 shard", make=headrace(window=300)),
    Arm(name="Headrace, window 4 shards", make=headrace(window=4800)),
    Arm(name="Headrace, window 16 shards (one permutation)", make=headrace(window=19_200)),
    Arm(name="Headrace, 16 lanes", make=headrace(lanes=16)),
    Arm(name="Headrace, 256 lanes", make=headrace(lanes=256)),
    Arm(name="WebDataset, shuffle(1000)", make=webdataset(1000)),
    Arm(name="WebDataset, shuffle(2400)", make=webdataset(2400)),
    Arm(name="WebDataset, shuffle(10000)", make=webdataset(10_000)),
    Arm(name="shards permuted, samples in order", make=shards_only),
)


def label_entropy_bits(epoch: Epoch, labels: np.ndarray) -> float:
    """Mean over the batches of the entropy of the labels in one."""
    counts = _class_counts(epoch, labels)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(-(shares * np.log2(np.where(shares > 0, shares, 1))).sum(axis=1).mean())


def class_imbalance(epoch: Epoch, labels: np.ndarray, batches: int) -> float:
    """Variance of class counts over rows of batches, as a multiple of the multinomial's."""
    counts = _class_counts(epoch, labels)
    rows = counts[: len(counts) // batches * batches].reshape(-1, batches, CLASSES).sum(axis=1)
    expected = batches * GLOBAL_BATCH / CLASSES
    return float(((rows - expected) ** 2).mean() / (expected * (1 - 1 / CLASSES)))


def next_batch_correlation(epoch: Epoch, labels: np.ndarray) -> float:
    """Mean correlation of the class counts of a batch with those of the next."""
    counts = _class_counts(epoch, labels).astype(np.float64)
    counts -= counts.mean(axis=1, keepdims=True)
    counts /= np.linalg.norm(counts, axis=1, keepdims=True)
    return float((counts[1:] * counts[:-1]).sum(axis=1).mean())


def neighbour_distance(epoch: Epoch) -> float:
    """Mean distance in the epoch of samples that are neighbours in the dataset; full: 1/3."""
    return float(np.abs(np.diff(_positions(epoch))).mean() / SAMPLES)


def index_correlation(epoch: Epoch) -> float:
    """Correlation of a sample's number with its position (both are ranks, so Spearman's)."""
    return float(np.corrcoef(_positions(epoch), np.arange(SAMPLES))[0, 1])


def epoch_correlation(epoch: Epoch, following: Epoch) -> float:
    """Correlation of a sample's positions in two epochs."""
    return float(np.corrcoef(_positions(epoch), _positions(following))[0, 1])


def partners_again(epoch: Epoch, following: Epoch) -> float:
    """How much oftener batch partners meet again in the next epoch than by chance; full: 1."""
    batch = epoch.reshape(BATCHES, GLOBAL_BATCH)
    later = _positions(following) // GLOBAL_BATCH
    together = [later[batch] == np.roll(later[batch], turn, axis=1) for turn in range(1, 128)]
    return float(np.mean(together) * SAMPLES / GLOBAL_BATCH)


def shards_in_batch(epoch: Epoch) -> float:
    """Mean number of distinct shards in a batch."""
    shards = np.sort(epoch.reshape(BATCHES, -1) // SHARD_SIZE, axis=1)
    return float((np.diff(shards, axis=1) > 0).sum(axis=1).mean() + 1)


def shards_of_rank(epoch: Epoch) -> float:
    """Mean share of the shards that a rank reads in the epoch."""
    return float(
        np.mean([len(np.unique(epoch[:, r] // SHARD_SIZE)) for r in range(RANKS)]) / SHARDS
    )


def classes_of_rank(epoch: Epoch) -> float:
    """Mean share of the classes that a rank sees in the epoch."""
    return float(
        np.mean([len(np.unique(SORTED_LABELS[epoch[:, r]])) for r in range(RANKS)]) / CLASSES
    )


def shards_at_once(epoch: Epoch) -> float:
    """Mean number of shards that a rank reads within 100 steps."""
    rows = (epoch // SHARD_SIZE)[: BATCHES // 100 * 100].reshape(-1, 100, RANKS, RANK_BATCH)
    return float(np.mean([len(np.unique(row[:, r])) for row in rows for r in range(RANKS)]))


def _class_counts(epoch: Epoch, labels: np.ndarray) -> np.ndarray:
    cells = labels[epoch.reshape(BATCHES, -1)] + np.arange(BATCHES)[:, None] * CLASSES
    return np.bincount(cells.ravel(), minlength=BATCHES * CLASSES).reshape(BATCHES, CLASSES)


def _positions(epoch: Epoch) -> np.ndarray:
    positions = np.empty(SAMPLES, dtype=np.float64)
    positions[epoch.ravel()] = np.arange(SAMPLES)
    return positions


def accuracy_after_one_epoch(epoch: Epoch, of_sample: np.ndarray) -> float:
    """Test accuracy of a linear classifier that saw the samples once, in this order."""
    rng = np.random.default_rng(5000)
    centres = rng.normal(size=(CLASSES, 64)).astype(np.float32)
    weights = np.zeros((64, CLASSES), dtype=np.float32)
    rows = np.arange(GLOBAL_BATCH)
    for step, batch in enumerate(epoch.reshape(BATCHES, GLOBAL_BATCH)):
        labels = of_sample[batch]
        inputs = _noisy(centres[labels], rng)
        errors = _softmax(inputs @ weights)
        errors[rows, labels] -= 1
        weights -= (1 - step / BATCHES) * LEARNING_RATE / GLOBAL_BATCH * (inputs.T @ errors)
    labels = rng.integers(CLASSES, size=20_000)
    guesses = (_noisy(centres[labels], rng) @ weights).argmax(axis=1)
    return float((guesses == labels).mean())


def _noisy(inputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return inputs + NOISE * rng.standard_normal(inputs.shape, dtype=np.float32)


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


LEARNED = ("label entropy, bits", "imbalance, 1 batch", "imbalance, 100 batches",
           "next-batch correlation", "accuracy, %", "packed: label entropy, bits",
           "packed: imbalance, 100 batches", "packed: accuracy, %")  # fmt: skip
PLACED = ("neighbour distance", "index correlation", "epoch correlation", "repeated partners",
          "shards in a batch", "rank: shards", "rank: classes", "rank: shards in 100 steps",
          "epoch computed in, s")  # fmt: skip


def measure(arm: Arm) -> tuple[list[str], list[str]]:
    """Return the arm's row of the table of what a model meets, and of where samples lie."""
    began = time.perf_counter()
    epoch = arm.make(0)
    seconds = time.perf_counter() - began
    following = arm.make(1)
    if not np.array_equal(np.sort(epoch.ravel()), np.arange(SAMPLES)):
        raise SystemExit(f"{arm.name}: not every sample comes once")
    learned = [
        f"{label_entropy_bits(epoch, SORTED_LABELS):.2f}",
        f"{class_imbalance(epoch, SORTED_LABELS, 1):.2f}",
        f"{class_imbalance(epoch, SORTED_LABELS, 100):.1f}",
        f"{next_batch_correlation(epoch, SORTED_LABELS):.2f}",
        f"{100 * accuracy_after_one_epoch(epoch, SORTED_LABELS):.1f}",
        f"{label_entropy_bits(epoch, PACKED_LABELS):.2f}",
        f"{class_imbalance(epoch, PACKED_LABELS, 100):.2f}",
        f"{100 * accuracy_after_one_epoch(epoch, PACKED_LABELS):.1f}",
    ]
    placed = [
        f"{neighbour_distance(epoch):.4f}",
        f"{index_correlation(epoch):+.3f}",
        f"{epoch_correlation(epoch, following):+.3f}",
        f"{partners_again(epoch, following):.2f}",
        f"{shards_in_batch(epoch):.0f}",
        f"{shards_of_rank(epoch):.3f}",
        f"{classes_of_rank(epoch):.3f}",
        f"{shards_at_once(epoch):.0f}",
        f"{seconds:.2f}",
    ]
    return learned, placed


def print_table(columns: tuple[str, ...], rows: dict[str, list[str]]) -> None:
    """Print one table in Markdown."""
    print("| order | " + " | ".join(columns) + " |")
    print("|---" + "|---:" * len(columns) + "|")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()


def main() -> None:
    """Measure every arm and print both tables."""
    rows = {arm.name: measure(arm) for arm in ARMS}
    print(f"{machine()}\n\n{SAMPLES:,} samples, {SHARDS:,} shards, {RANKS} ranks of {RANK_BATCH}\n")
    print_table(LEARNED, {name: learned for name, (learned, _) in rows.items()})
    print_table(PLACED, {name: placed for name, (_, placed) in rows.items()})


if __name__ == "__main__":
    main()
