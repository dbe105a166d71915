"""What is counted of a batch: reads, looked at often first and seldom later."""

from __future__ import annotations

import builtins
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from headrace.observe.probe import batch_recorder
from headrace.observe.probe.recording_session import SESSION, RecordingSession

BATCH_NS, SIZE = 50_000_000, 100_000


def test_reads_that_are_looked_at_seldom_are_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now_ns = 1_000_000_000
    monkeypatch.setattr(batch_recorder.time, "monotonic_ns", lambda: now_ns)
    data = tmp_path / "data"
    data.write_bytes(bytes(SIZE))
    recorder = batch_recorder.BatchRecorder()
    recorder._read_since()  # of the time before its first batch
    seen = []
    for _ in range(99 + 4 * 10):
        data.read_bytes()
        now_ns += BATCH_NS
        seen.append(recorder._read_since()[0])
    looked = [number for number, read_bytes in enumerate(seen) if read_bytes]
    assert looked == [*range(99), *range(99 + 3, 99 + 4 * 10, 4)]
    assert len(seen) * SIZE <= sum(seen) < len(seen) * SIZE * 1.05


def test_one_thread_makes_the_batch_that_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SESSION, "_failed", False)
    monkeypatch.setattr(RecordingSession, "on", True)
    monkeypatch.setattr(batch_recorder.READ_MONITOR, "begin", lambda _: None)
    recorder = batch_recorder.BatchRecorder()
    began = []
    assert recorder.began(0) is not None
    assert recorder.began(0) is None  # a dataset's own loader, say
    other = threading.Thread(target=lambda: began.append(recorder.began(0)))
    other.start()
    other.join()
    assert began == [None]
    recorder.failed()
    recorder.failed()  # in a child that was forked meanwhile
    assert recorder.began(0) is not None
    recorder.failed()


def test_an_error_amid_a_batchs_begin_leaves_nothing_in_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SESSION, "_failed", False)
    monkeypatch.setattr(RecordingSession, "on", True)
    recorder, original = batch_recorder.BatchRecorder(), builtins.open
    begin = batch_recorder.READ_MONITOR.begin

    def begin_and_fail(loader: int) -> None:
        begin(loader)
        assert builtins.open is not original
        raise KeyboardInterrupt  # as a signal does

    monkeypatch.setattr(batch_recorder.READ_MONITOR, "begin", begin_and_fail)
    with pytest.raises(KeyboardInterrupt):
        recorder.began(0)
    assert builtins.open is original
    assert batch_recorder.READ_MONITOR.thread is None
    monkeypatch.setattr(batch_recorder.READ_MONITOR, "begin", lambda _: None)
    assert recorder.began(0) is not None
    recorder.failed()


def test_indices_that_can_only_be_iterated_over_leave_the_size_to_the_batch():
    fetcher = SimpleNamespace(auto_collation=True)
    batch = [torch.zeros(3, 2), torch.zeros(3)]
    assert batch_recorder._batch_size(fetcher, [4, 1, 2], batch) == 3
    assert batch_recorder._batch_size(fetcher, iter([4, 1, 2]), batch) == 3
    assert batch_recorder._batch_size(fetcher, iter([4, 1, 2]), object()) == -1


@pytest.mark.parametrize(
    "methods", [["fork", "spawn", "forkserver"], ["forkserver", "spawn", "fork"]]
)
def test_the_start_method_is_python_s_own_until_one_is_chosen(
    methods: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    chosen = multiprocessing.get_start_method(allow_none=True)
    assert batch_recorder.start_method() == (chosen or methods[0])
    assert multiprocessing.get_start_method(allow_none=True) == chosen  # asking fixes nothing


def sizes(loader: DataLoader[object]) -> list[int]:
    """Return the size of each batch of a loader without workers, as its fetcher is recorded."""
    found: list[int] = []
    iterator = iter(loader)
    fetcher = iterator._dataset_fetcher  # type: ignore[attr-defined]
    fetcher.collate_fn = batch_recorder.BATCH_RECORDER.collating(fetcher.collate_fn)
    original = fetcher.fetch

    def fetch(index: object) -> object:
        batch_recorder.BATCH_RECORDER.collated = -1
        batch = original(index)
        found.append(batch_recorder._batch_size(fetcher, index, batch))
        return batch

    fetcher.fetch = fetch
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
