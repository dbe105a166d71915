"""Reads of files are timed in all batches at first, later in as many as that may cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.observe.probe.file_reads import FileReads, FileTimingRates

AT_FIRST, BATCH_NS, SAMPLES = 100, 50_000_000, 32


class Loaders:
    """Loaders of one process: which of their batches are timed, by the files that these open."""

    def __init__(self) -> None:
        self.rates = FileTimingRates()
        self.reads = FileReads(lambda call, *args: call(*args), lambda: True)

    def is_timed(self, file: Path, *, files: int, loader: int = 0) -> bool:
        """Make a batch; return whether its reads are timed."""
        is_due = self.rates.is_due(loader, deep=False)
        if is_due:
            self.reads.begin()
        for _ in range(files):
            file.read_bytes()
        self.reads.end()
        if is_due:
            assert self.reads.opened == files
            self.rates.weigh(loader, self.reads.opened, BATCH_NS)
        return is_due


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    return path


def test_batches_that_open_many_files_are_timed_now_and_then(file: Path):
    loaders = Loaders()
    found = [loaders.is_timed(file, files=SAMPLES) for _ in range(AT_FIRST + 64)]
    assert all(found[:AT_FIRST])
    # 32 files take 0.16 ms longer, 0.32 % of the batch: in one of 8 that is less than 0.05 %.
    timed = [number for number, is_timed in enumerate(found[AT_FIRST:]) if is_timed]
    assert timed == [*range(timed[0], 64, 8)]


def test_where_few_files_are_opened_each_batch_is_timed(file: Path):
    loaders = Loaders()
    assert all(loaders.is_timed(file, files=1) for _ in range(AT_FIRST + 50))


def test_one_loaders_files_leave_out_no_batch_of_another(file: Path):
    loaders = Loaders()
    for _ in range(AT_FIRST + 20):
        loaders.is_timed(file, files=SAMPLES, loader=0)
    assert not loaders.is_timed(file, files=SAMPLES, loader=0)
    assert all(loaders.is_timed(file, files=1, loader=1) for _ in range(AT_FIRST + 20))
    assert not loaders.is_timed(file, files=SAMPLES, loader=0)


def test_a_forked_child_times_all_of_its_first_batches(file: Path):
    loaders = Loaders()
    for _ in range(AT_FIRST + 20):
        loaders.is_timed(file, files=SAMPLES)
    loaders.rates.forget()
    assert all(loaders.is_timed(file, files=SAMPLES) for _ in range(AT_FIRST))
