"""What is counted of a batch: reads, looked at often first and seldom later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from headrace.observe.probe.batch_samples import collated_samples, fetched_samples
from headrace.observe.probe.process_usage import OwnReads

BATCH_NS, SIZE = 50_000_000, 100_000


def test_reads_that_are_looked_at_seldom_are_all_counted(tmp_path: Path):
    now_ns = 1_000_000_000
    data = tmp_path / "data"
    data.write_bytes(bytes(SIZE))
    reads = OwnReads()
    reads.begin(now_ns)  # of the time before its first batch nothing counts
    seen = []
    for _ in range(99 + 4 * 10):
        data.read_bytes()
        now_ns += BATCH_NS
        seen.append(reads.since(now_ns)[0])
    looked = [number for number, read_bytes in enumerate(seen) if read_bytes]
    assert looked == [*range(99), *range(99 + 3, 99 + 4 * 10, 4)]
    assert len(seen) * SIZE <= sum(seen) < len(seen) * SIZE * 1.05


def test_indices_that_can_only_be_iterated_over_leave_the_size_to_the_batch():
    fetcher = SimpleNamespace(auto_collation=True)
    batch = [torch.zeros(3, 2), torch.zeros(3)]
    assert fetched_samples(fetcher, [4, 1, 2], batch, -1) == 3
    assert fetched_samples(fetcher, iter([4, 1, 2]), batch, -1) == 3
    assert fetched_samples(fetcher, iter([4, 1, 2]), object(), -1) == -1


def sizes(loader: DataLoader[object]) -> list[int]:
    """Return the size of each batch of a loader without workers, as its fetcher says."""
    found: list[int] = []
    iterator = iter(loader)
    fetcher = iterator._dataset_fetcher  # type: ignore[attr-defined]
    original, collate_fn = fetcher.fetch, fetcher.collate_fn
    collated = [-1]

    def collate(*arguments: Any) -> object:
        collated[0] = collated_samples(arguments)
        return collate_fn(*arguments)

    def fetch(index: object) -> object:
        collated[0] = -1
        batch = original(index)
        found.append(fetched_samples(fetcher, index, batch, collated[0]))
        return batch

    fetcher.collate_fn, fetcher.fetch = collate, fetch
    assert len(list(iterator)) == len(found)
    return found


class Stream(IterableDataset[object]):
    def __init__(self, *items: object) -> None:
        self.items = items

    def __iter__(self) -> Iterator[object]:
        return iter(self.items)


SAMPLES = [torch.zeros(16 + i) for i in range(10)]


def test_each_batch_has_as_many_samples_as_were_collated():
    def time_first(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([each[:16] for each in samples], dim=1)

    def opaque(samples: list[torch.Tensor]) -> object:
        return iter(samples)

    for collate in (list, tuple, time_first, opaque):
        assert sizes(DataLoader(SAMPLES, 4, collate_fn=collate)) == [4, 4, 2]
        assert sizes(DataLoader(Stream(*SAMPLES), 4, collate_fn=collate)) == [4, 4, 2]
    ragged = [[0, 1, 2], [3], [4, 5]]
    assert sizes(DataLoader(SAMPLES, batch_sampler=ragged, collate_fn=list)) == [3, 1, 2]
    wholes = DataLoader(NumberedRows(), sampler=ragged, batch_size=None)
    assert sizes(wholes) == [3, 1, 2]


class NumberedRows(Dataset[object]):
    """Gives a batch for a list of indices, as datasets of Hugging Face do."""

    def __getitem__(self, index: list[int]) -> object:
        return {"tokens": torch.zeros(16, len(index)), "name": "rows"}


def test_a_dataset_of_batches_says_their_size_only_where_all_parts_agree():
    batches = [torch.zeros(4, 3), torch.zeros(4)], {"x": torch.zeros(9, 2), "from": torch.zeros(5)}
    assert sizes(DataLoader(Stream(*batches), batch_size=None)) == [4, -1]
    # One index may be a sample or a batch.
    assert sizes(DataLoader(SAMPLES, batch_size=None)) == [-1] * 10
