"""One process of a host records as a rank: the first that claims it, or that trains."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from headrace.observe.probe.rank_claims import claim_of, claim_rank_file, is_file_claimed_by_another
from headrace.records.ring import since_boot_ns
from jobs import eventually

CONTEXT = multiprocessing.get_context("spawn")
WORD_S = 60


def claim_at_once(
    paths: list[Path], together: Barrier, won: list[list[bool]], looked: list[Event]
) -> None:
    for number, path in enumerate(paths):
        together.wait(WORD_S)
        won[number].append(claim_rank_file(path))
        looked[number].wait(WORD_S)


def test_of_processes_that_claim_at_once_one_wins(tmp_path: Path):
    paths = [tmp_path / f"{number}.claim" for number in range(20)]
    with CONTEXT.Manager() as manager:
        won = [manager.list() for _ in paths]
        looked = [CONTEXT.Event() for _ in paths]
        arguments = (paths, CONTEXT.Barrier(4), won, looked)
        processes = [CONTEXT.Process(target=claim_at_once, args=arguments) for _ in range(4)]
        for process in processes:
            process.start()
        for path, words, event in zip(paths, won, looked, strict=True):
            eventually(lambda words=words: len(words) == 4, "the word of each")
            assert is_file_claimed_by_another(path)
            assert sorted(words) == [False, False, False, True]
            event.set()
        for process in processes:
            process.join(WORD_S)


def test_what_this_process_has_claimed_stays_its_own(tmp_path: Path):
    path = tmp_path / "a.claim"
    assert not is_file_claimed_by_another(path)
    assert claim_rank_file(path)
    assert claim_rank_file(path)
    assert not is_file_claimed_by_another(path)


@pytest.mark.parametrize("awaited", [True, False])
def test_the_claim_of_one_that_has_ended_is_free(tmp_path: Path, awaited: bool):
    path = tmp_path / "a.claim"
    child = subprocess.Popen([sys.executable, "-c", ""])
    path.write_text(f"{child.pid} {since_boot_ns()}")
    # Where nobody waits for it, it has its number still.
    os.waitid(os.P_PID, child.pid, os.WEXITED | (0 if awaited else os.WNOWAIT))
    assert not is_file_claimed_by_another(path)
    assert claim_rank_file(path)
    child.wait()


def test_a_later_process_with_its_number_has_claimed_nothing(tmp_path: Path):
    path = tmp_path / "a.claim"
    path.write_text(f"{os.getppid()} 1")
    assert claim_rank_file(path)


def test_a_claim_that_was_cut_off_before_it_was_written_is_free(tmp_path: Path):
    path = tmp_path / "a.claim"
    path.touch()
    assert claim_rank_file(path)


@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize("ours", [False, True])
def test_who_trains_takes_over_from_who_has_only_asked_for_batches(
    tmp_path: Path, theirs: bool, ours: bool
):
    path = tmp_path / "a.claim"
    path.write_text(f"{os.getppid()} {since_boot_ns()}{' trains' if theirs else ''}")
    takes_over = ours and not theirs
    assert claim_rank_file(path, trains=ours) == takes_over
    assert is_file_claimed_by_another(path) == (not takes_over)
    claim = claim_of(path)
    assert claim is not None
    assert (claim.is_mine, claim.trains) == (takes_over, theirs or ours)


def test_who_has_trained_keeps_its_claim_while_it_evaluates(tmp_path: Path):
    path = tmp_path / "a.claim"
    assert claim_rank_file(path, trains=True)
    assert claim_rank_file(path)
    claim = claim_of(path)
    assert claim is not None
    assert claim.trains
