"""Entries of several attempts as points of one series in MLflow."""

from __future__ import annotations

from pathlib import Path

from headrace.decide.experiments.entry_batch import EntryBatch
from headrace.decide.experiments.sent_state import SentState
from headrace.decide.experiments.spool import Entry


def point(step: int | None, attempt: int | None = None) -> Entry:
    entry: Entry = {"kind": "metrics", "at_ms": 1, "values": {"loss": 1.0}, "step": step}
    return entry if attempt is None else {**entry, "attempt": attempt}


def steps(spool: Path, *pieces: list[Entry]) -> list[int]:
    """Return the steps of all points, each piece sent after the state of the last was written."""
    found: list[int] = []
    for entries in pieces:
        state = SentState.read(spool)
        batch = EntryBatch(state, spool, {}, lambda _: None)
        batch.add(entries)
        state.write(spool)
        found += [step for _, _, _, step in batch.batch.metrics]
    return found


def test_steps_that_begin_anew_with_each_attempt_go_on(tmp_path: Path):
    first = [point(step, 1) for step in (2, 5, 9)]
    second = [point(step, 2) for step in (2, 5)]
    assert steps(tmp_path, first, second[:1], [*second[1:], point(0, 3)]) == [2, 5, 9, 12, 15, 16]


def test_steps_that_a_script_gives_stay(tmp_path: Path):
    assert steps(tmp_path, [point(7), point(3), point(None)], [point(None)]) == [7, 3, 8, 9]


def status(attempt: int, at_ms: int, status: str) -> Entry:
    return {"kind": "status", "at_ms": at_ms, "status": status, "attempt": attempt}


def test_the_status_of_the_last_attempt_counts_though_the_clock_was_set_back(tmp_path: Path):
    state = SentState()
    for entries in (
        [status(1, 5000, "RUNNING"), status(1, 9000, "FAILED")],
        [status(2, 1000, "RUNNING")],
        [status(1, 9500, "KILLED")],  # of another file, read later
        [status(2, 2000, "FINISHED"), status(2, 1500, "RUNNING")],
    ):
        EntryBatch(state, tmp_path, {}, lambda _: None).add(entries)
    assert (state.status, state.status_ms, state.status_attempt) == ("FINISHED", 2000, 2)
