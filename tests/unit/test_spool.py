"""The spool of a run: each entry is read once, in order, across threads, forks and full disks."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import files
from headrace.decide.experiments.spool import Entry, SpoolWriter, read_spool


def metrics(step: int, value: float = 0.0) -> Entry:
    return {"kind": "metrics", "at_ms": step, "values": {"loss": value}, "step": step}


def read_all(folder: Path, offsets: dict[str, int] | None = None) -> list[Entry]:
    return [entry for entries, _ in read_spool(folder, offsets or {}) for entry in entries]


def test_what_is_logged_is_on_disk_soon_without_a_flush(tmp_path: Path):
    writer = SpoolWriter(tmp_path)
    writer.add(metrics(1))
    thread = writer._thread
    assert thread is not None
    writer._is_closed.set()  # its thread ends after a last look, as it would go on
    thread.join(60)
    writer.close()
    assert [entry["step"] for entry in read_all(tmp_path)] == [1]


def test_nothing_is_lost_or_doubled_among_threads(tmp_path: Path):
    writer = SpoolWriter(tmp_path)

    def log(first: int) -> None:
        for step in range(first, first + 500):
            writer.add(metrics(step))
            if step % 50 == 0:
                writer.flush()

    threads = [threading.Thread(target=log, args=[1000 * number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    steps = [entry["step"] for entry in read_all(tmp_path)]
    assert sorted(steps) == sorted(1000 * n + step for n in range(4) for step in range(500))
    for number in range(4):  # in the order of each thread
        mine = [step for step in steps if step // 1000 == number]
        assert mine == sorted(mine)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-300, 0.1])
def test_a_number_comes_back_as_it_was(tmp_path: Path, value: float):
    writer = SpoolWriter(tmp_path)
    writer.add(metrics(0, value))
    writer.close()
    (entry,) = read_all(tmp_path)
    assert entry["values"]["loss"] == pytest.approx(value, abs=0, nan_ok=True)


def test_a_forked_child_logs_to_a_file_of_its_own(tmp_path: Path):
    writer = SpoolWriter(tmp_path)
    writer.add(metrics(1))
    pid = os.fork()
    if not pid:  # the child, with what the parent has not written yet
        try:
            writer.add(metrics(2))
            writer.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    writer.add(metrics(3))
    writer.close()
    assert sorted(entry["step"] for entry in read_all(tmp_path)) == [1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 2


@given(
    counts=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    piece=st.integers(1, 200),
)
def test_each_entry_is_read_once_wherever_reads_and_writes_were_cut(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], cuts: list[int], piece: int
):
    folder = tmp_path_factory.mktemp("spool")
    files = {
        f"{number}-{number}.jsonl": b"".join(
            json.dumps(metrics(100 * number + step)).encode() + b"\n" for step in range(count)
        )
        for number, count in enumerate(counts)
    }
    seen: list[Any] = []
    offsets: dict[str, int] = {}
    for cut in [*sorted(cuts), 10_000]:  # each file grows, its last line half-written at times
        for name, data in files.items():
            (folder / name).write_bytes(data[:cut])
        for entries, after in read_spool(folder, offsets, piece):
            seen += [entry["step"] for entry in entries]
            offsets = after
    assert sorted(seen) == sorted(
        100 * number + step for number, count in enumerate(counts) for step in range(count)
    )


def test_a_full_disk_keeps_entries_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    writer = SpoolWriter(tmp_path)
    writer.add(metrics(1))
    writer.flush()
    written = files.write_all

    def half(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", half)
    writer.add(metrics(2))
    for _ in range(3):
        writer.flush()
    assert capsys.readouterr().err.count("No space left") == 1
    assert [entry["step"] for entry in read_all(tmp_path)] == [1]
    monkeypatch.setattr(files, "write_all", written)
    writer.close()
    assert [entry["step"] for entry in read_all(tmp_path)] == [1, 2]


def test_what_a_full_disk_never_took_is_counted_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(descriptor: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    writer = SpoolWriter(tmp_path)
    written = files.write_all
    monkeypatch.setattr(files, "write_all", full)
    for step in range(2500):
        writer.add(metrics(step))
    writer.flush()
    monkeypatch.setattr(files, "write_all", written)
    writer.flush()
    monkeypatch.setattr(files, "write_all", full)
    writer.add(metrics(2500))
    writer.add(metrics(2501))
    writer.close()
    assert [entry["step"] for entry in read_all(tmp_path)] == [*range(2500)]
    said = capsys.readouterr().err
    assert said.count("No space left") == 2  # each time that the disk is full
    assert "2 entries that the script logged are lost" in " ".join(said.split())


def test_a_line_that_is_completed_while_it_is_read_is_read_once(tmp_path: Path):
    lines = [json.dumps(metrics(step)).encode() + b"\n" for step in range(3)]
    file = tmp_path / "1.jsonl"
    file.write_bytes(lines[0] + lines[1][:10])
    pieces = read_spool(tmp_path, {})
    first, offsets = next(pieces)
    with file.open("ab") as more:
        more.write(lines[1][10:] + lines[2])
    found = [*first, *(entry for entries, _ in pieces for entry in entries)]
    found += read_all(tmp_path, offsets)
    assert [entry["step"] for entry in found] == [0, 1, 2]


def test_texts_that_are_no_utf8_are_read_as_ones_that_are(tmp_path: Path):
    odd, plain = os.fsdecode(b"caf\xe9"), "\N{FACE WITH TEARS OF JOY} caf\xe9"
    writer = SpoolWriter(tmp_path)
    writer.add({"kind": "params", "at_ms": 1, "values": {odd: odd, "b": plain}})
    writer.add({"kind": "summary", "at_ms": 1, "values": {odd: 1.5}})
    writer.add({"kind": "artifact", "at_ms": 1, "path": odd, "folder": ""})
    writer.close()
    params, summary, artifact = read_all(tmp_path)
    assert params["values"] == {"caf?": "caf?", "b": plain}
    assert summary["values"] == {"caf?": 1.5}
    assert artifact["path"] == odd  # by which it is opened
