"""What `--offload auto` prints as a job ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.jobs.hosts.offload_setup import OffloadAuto, OffloadPrediction
from headrace.observe.whatif.prediction import Prediction


def predicted(speedup: float) -> OffloadPrediction:
    prediction = Prediction(speedup=speedup, low=speedup - 0.1, high=speedup + 0.1, wait_share=0.1)
    return OffloadPrediction(prediction=prediction, wait_share=0.5, reached=True)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (predicted(1.5), "was not used: the job ended as that was found out: with its 4 cores"),
        (predicted(1.0), "was not used: with its 4 cores the job is predicted to run 1.00 times"),
        (None, "was not used: no steps were recorded"),
    ],
)
def test_a_look_that_ends_with_the_job_announces_no_help(
    found: OffloadPrediction | None, message: str, tmp_path: Path
):
    lines: list[str] = []
    choice = OffloadAuto(tmp_path, 1, "cpu", 1, lines.append)
    assert not choice.is_yes(4, 0.0)  # a look begins
    choice._pending = choice._thread.submit(lambda: found)
    choice._pending.result()
    choice.close()
    (line,) = lines
    assert message in line
    assert "from now on" not in line


def test_more_hosts_are_predicted_for_and_then_used(tmp_path: Path):
    lines: list[str] = []
    choice = OffloadAuto(tmp_path, 1, "cpu", 1, lines.append)
    used = []
    for cores, found, now_s in ((4, predicted(1.0), 0.0), (8, predicted(1.5), 100.0)):
        choice.is_yes(cores, now_s)  # a prediction begins
        choice._pending = choice._thread.submit(lambda found=found: found)
        choice._pending.result()
        used.append(choice.is_yes(cores, now_s))
    assert used == [False, True]
    assert ["is not used" in lines[0], "from now on: with its 8 cores" in lines[1]] == [True, True]
    choice._is_checked = True
    choice.close()
