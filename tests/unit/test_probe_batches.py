"""What is counted of a batch: reads, looked at often first and seldom later."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.observe.probe import batches

BATCH_NS, SIZE = 50_000_000, 100_000


def test_reads_that_are_looked_at_seldom_are_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now_ns = 1_000_000_000
    monkeypatch.setattr(batches.time, "monotonic_ns", lambda: now_ns)
    data = tmp_path / "data"
    data.write_bytes(bytes(SIZE))
    recorder = batches.BatchRecorder()
    recorder._read_since()  # of the time before its first batch
    seen = []
    for _ in range(99 + 4 * 10):
        data.read_bytes()
        now_ns += BATCH_NS
        seen.append(recorder._read_since()[0])
    looked = [number for number, read_bytes in enumerate(seen) if read_bytes]
    assert looked == [*range(99), *range(99 + 3, 99 + 4 * 10, 4)]
    assert len(seen) * SIZE <= sum(seen) < len(seen) * SIZE * 1.05
