"""The reads of an iteration's first batch go before those of all others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from distant_numbers import BATCH, OTHERS, Distant
from headrace import DataLoader
from headrace.core.errors import WorkerError
from headrace.data.loader.workers import forkserver as worker_side
from headrace.data.loader.workers.messages import FirstBatchEvent


def loader_of(folder: Path, fate: str = "") -> DataLoader:
    def up(worker: int) -> None:
        if fate not in {"killed", "stuck"}:  # there, the wait has to end by itself
            worker_side._FIRST_BATCH_WAIT_S = 60  # the first batch may be late on a full host
        (folder / f"up {worker}").touch()

    return DataLoader(
        Distant(folder, fate),
        BATCH,
        num_workers=2,
        worker_init_fn=up,
        prefetch_batches=1 + OTHERS if fate == "stuck" else None,  # all are under way at once
    )


def test_later_batches_are_read_when_the_first_has_arrived(tmp_path: Path):
    loader = loader_of(tmp_path)
    assert [int(batch[0]) // BATCH for batch in loader] == list(range(6))
    began = sorted(path.name for path in tmp_path.glob("batch *"))
    assert began == [f"batch {number} began after" for number in range(1, 6)]


def test_each_epoch_begins_so(tmp_path: Path):
    loader = loader_of(tmp_path)
    for _ in range(2):
        for path in [*tmp_path.glob("batch *"), *tmp_path.glob("arrived")]:
            path.unlink()
        assert len(list(loader)) == 6
        assert not list(tmp_path.glob("* before"))
        assert len(list(tmp_path.glob("* after"))) == 5


def test_a_killed_worker_does_not_keep_the_others_waiting(tmp_path: Path):
    loader = loader_of(tmp_path, "killed")
    assert [int(batch[0]) // BATCH for batch in loader] == list(range(6))
    assert (tmp_path / "killed").exists()


def test_one_worker_waits_for_a_stuck_first_batch_and_all_others_go_on(tmp_path: Path):
    # For longer than is waited for it once, and not as often as there are other batches.
    loader = loader_of(tmp_path, "stuck")
    assert [int(batch[0]) // BATCH for batch in loader] == list(range(1 + OTHERS))


def test_a_first_batch_that_fails_is_reported(tmp_path: Path):
    with pytest.raises(WorkerError, match="no good"):
        list(loader_of(tmp_path, "fails"))


def test_a_gate_holds_until_it_is_opened_and_again_when_it_is_shut():
    event = FirstBatchEvent.new()
    event.open()
    event.open()
    assert event.wait(60)
    assert event.wait(60)
    event.shut()
    event.shut()
    began = time.monotonic()
    assert not event.wait(0.05)
    assert time.monotonic() - began >= 0.05
    event.close()
