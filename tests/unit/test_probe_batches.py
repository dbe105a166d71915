"""What is counted of a batch: reads, looked at often first and seldom later."""

from __future__ import annotations

import builtins
import multiprocessing
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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
