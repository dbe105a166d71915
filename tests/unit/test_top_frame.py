"""Frames of `headrace top`: what they say, and that they fit."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from headrace.report.top.screen import PHASE_GLYPHS, render_frame, share_bars, stacked_bar
from headrace.report.top.state import (
    GpuMetrics,
    HostMetrics,
    LiveVerdict,
    ProcessRates,
    RankRate,
    RunStatus,
    StepRates,
    StepTimes,
    TimeWindow,
    TopState,
)

S = 1_000_000_000
SENTENCE = (
    "42% of step time waits for data: RandomBlur at augment.py:31 takes 71% of the workers' time; "
    "no RandomBlur in the workers would give 1.6x (1.4 to 1.7)."
)
SHARES = {
    "data_wait": 0.42, "copy": 0.004, "forward": 0.2, "backward": 0.296, "sync": 0.05,
    "optimizer": 0.03, "other": 0.0,
}  # fmt: skip


def state(*, ranks: int = 2, workers: int = 2, cores: int = 2, gpus: int = 1) -> TopState:
    processes: list[ProcessRates] = []
    for rank in range(ranks):
        processes.append(
            ProcessRates(
                rank=rank, batches_per_s=12.3, busy=0.58, cpu=0.71,
                doing="train.py:40 main", doing_share=0.62,
            )
        )  # fmt: skip
        processes += [
            ProcessRates(
                rank=rank, loader=0, worker=worker, batches_per_s=6.15, busy=0.98, cpu=0.95,
                doing="augment.py:31 RandomBlur", doing_share=0.71,
            )
            for worker in range(workers)
        ]  # fmt: skip
    return TopState(
        status=RunStatus(name="base", attempt=1, world_size=ranks, elapsed_s=185.4),
        window=TimeWindow(0, 10 * S),
        steps=StepRates(
            ranks=tuple(
                RankRate(rank=rank, steps_per_s=12.0 + rank, samples_per_s=394.0)
                for rank in range(ranks)
            ),
            times=StepTimes(
                count=246, median_ns=81.3e6, p90_ns=95.1e6, p99_ns=140e6, longest_ns=210e6
            ),
            shares=SHARES,
        ),
        host=HostMetrics(
            cores=tuple((core, 0.25 + 0.5 * (core % 2)) for core in range(cores)),
            memory_used_bytes=12 * 2**30,
            memory_bytes=64 * 2**30,
            disk_read_bytes_per_s=120e6,
            received_bytes_per_s=3e6,
            sent_bytes_per_s=0.0,
            gpus=tuple(
                GpuMetrics(
                    number=gpu, utilisation=0.5, memory_bytes=2**34, power_w=250.0,
                    received_bytes_per_s=1e9, sent_bytes_per_s=0.0,
                )
                for gpu in range(gpus)
            ),
        ),
        processes=tuple(processes),
        verdict=LiveVerdict(sentence=SENTENCE, span_s=60.0, data_wait_share=0.38),
    )  # fmt: skip


def drawn(
    shown: TopState, *, width: int = 80, height: int | None = 24, paused: bool = False
) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, highlight=False)
    console.print(render_frame(shown, console, height=height, paused=paused))
    return file.getvalue()


def test_a_frame_says_all_that_was_asked_of_it():
    text = drawn(state())
    verdict = " ".join(text.split())
    for words in (
        "base attempt 1 2 ranks running, 3 min 05 s",
        "12.5 steps/s 788 samples/s in the last 10 s",
        "by rank, steps/s and samples/s 0: 12, 394 1: 13, 394",
        "step 81.3 ms median p90 95.1 p99 140 longest 210 246 steps",
        "data wait 42% now 38% over the run",
        "█ data wait 42% ▒ forward 20% ░ backward 30% ▚ gradient sync 5.0% ▪ optimizer 3.0%",
        "2 cores, 50% busy",
        "memory 12 GiB of 64 GiB disk read 114 MiB/s network in 2.86 MiB/s, out 0 B/s",
        "50% memory 16 GiB 250 W PCIe in 954 MiB/s, out 0 B/s",
        "rank 0 - - 12.3 58% 71% 62% train.py:40 main",
        "worker 1 0 1 6.15 98% 95% 71% augment.py:31 RandomBlur",
        f"last 1 min 00 s: {SENTENCE}",
        "q leaves p pauses",
    ):
        assert words in verdict
    assert "copy" not in verdict  # 0.4 % would be shown as 0 %


@pytest.mark.parametrize(("ranks", "workers", "cores", "gpus"), [
    (1, 0, 2, 0), (2, 4, 8, 1), (8, 8, 64, 8), (16, 16, 192, 16),
])  # fmt: skip
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (240, 100)])
def test_a_frame_fits(ranks: int, workers: int, cores: int, gpus: int, width: int, height: int):
    shown = state(ranks=ranks, workers=workers, cores=cores, gpus=gpus)
    lines = drawn(shown, width=width, height=height).splitlines()
    assert len(lines) <= height
    assert max(cell_len(line) for line in lines) <= width
    assert any("q leaves" in line for line in lines)
    assert any(line.startswith("last 1 min 00 s: 42% of step time waits") for line in lines)
    assert any("train.py:40 main" in line for line in lines)


def test_a_larger_terminal_shows_more():
    shown = state(ranks=2, workers=16, cores=16)
    small, large = drawn(shown), drawn(shown, width=160, height=60)
    assert sum(line.startswith("workers ") for line in small.splitlines()) == 2
    assert "all 16" in small
    assert small.count("RandomBlur ") < large.count("augment.py:31")
    assert sum(line.startswith("worker ") for line in large.splitlines()) == 32
    assert re.search(r"\b15 █{5}", large)
    assert not re.search(r"\b15 █", small)


def test_what_does_not_fit_is_counted_and_all_is_there_without_a_height():
    shown = state(ranks=16, workers=2)
    lines = drawn(shown).splitlines()
    rows = sum(line.startswith(("rank ", "workers ")) for line in lines)
    verdict = next(line for line in lines if "which a taller terminal shows" in line)
    assert int(verdict.split()[0]) == 32 - rows
    assert len(lines) == 24  # no line is left empty
    whole = drawn(shown, height=None).splitlines()
    assert sum(line.startswith(("rank ", "worker ")) for line in whole) == 48
    assert not any("q leaves" in line for line in whole)


OVER = {"live": False, "outcome": "killed"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({**OVER, "outcome": "succeeded", "exit_code": 0}, "over after 3 min 05 s, exit code 0"),
        ({**OVER, "outcome": "failed", "exit_code": 137}, "exit code 137"),
        ({**OVER, "elapsed_s": None}, "over: nothing was left to say how"),
        ({"live": False}, "running, 3 min 05 s   its records are closed"),
        ({**OVER, "outcome": "unknown"}, "recorded for 3 min 05 s: may go on elsewhere"),
        ({"recording": False}, "recording is off"),
        ({"silent_s": 12.4}, "nothing recorded for 12 s"),
    ],
)
def test_how_it_stands_is_reported(changed: dict, words: str):
    shown = state()
    shown = replace(shown, status=replace(shown.status, **changed))
    assert words in drawn(shown).splitlines()[0]


def test_a_pause_a_stall_and_evaluation_are_reported():
    assert "paused" in drawn(state(), paused=True).splitlines()[0]
    shown = state()
    stands = replace(shown, steps=replace(shown.steps, quiet_s=45.2))
    assert "no step for 45 s" in drawn(stands)
    evaluates = drawn(replace(stands, steps=replace(stands.steps, evaluated_per_s=20.0)))
    assert "evaluating, 20 batches/s" in evaluates
    assert "no step for" not in evaluates


def test_a_run_of_which_nothing_is_known_yet_has_a_frame():
    nothing = replace(
        state(), steps=StepRates(), host=HostMetrics(), processes=(), verdict=None,
        status=RunStatus(name="base", attempt=1),
    )  # fmt: skip
    text = drawn(nothing)
    for words in (
        "running",
        "no training step yet",
        "no rank or worker was seen",
        "is being diagnosed",
    ):
        assert words in text


def test_names_from_records_do_not_steer_the_terminal():
    hostile = "\x1b]0;owned\x07[red]\x1b[2J\r\n"
    shown = state(ranks=1, workers=0)
    shown = replace(
        shown,
        status=replace(shown.status, name=hostile),
        processes=(replace(shown.processes[0], doing=hostile),),
        verdict=LiveVerdict(sentence=hostile),
    )
    text = drawn(shown, height=None)
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert text.count("[red]") == 3
    harmless = drawn(state(ranks=1, workers=0))
    assert len(drawn(shown).splitlines()) == len(harmless.splitlines()) - 2  # its verdict is longer


def test_a_stacked_bar_is_as_long_as_it_should_be_whatever_the_shares():
    for width in (1, 7, 80, 233):
        assert stacked_bar(SHARES, width).cell_len == width
    assert stacked_bar({}, 80).plain == ""
    bar = stacked_bar(SHARES, 100).plain
    assert [bar.count(PHASE_GLYPHS[name]) for name in SHARES] == [42, 0, 20, 30, 5, 3, 0]


def test_cells_of_many_cores_become_blocks():
    few = share_bars([(0, 0.5), (1, None)], 80, 1)
    assert [line.plain.split() for line in few] == [
        ["0", "█" * 10 + "·" * 10, "50%", "1", "·" * 20, "-"]
    ]
    many = share_bars([(core, core / 191) for core in range(192)], 80, 2)
    assert [line.cell_len for line in many] == [80, 80, 32]
    assert many[0].plain[0] == "·"
    assert many[2].plain[-1] == "█"
