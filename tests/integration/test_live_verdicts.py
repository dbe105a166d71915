"""When the live page's verdict is made anew."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from jobs import eventually, started
from live_app_here import LiveApp
from live_pages import HERE, TRAIN, record

_ENDLESS = 1e9


def test_a_verdict_is_due_at_once_as_an_attempt_begins_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", HERE["PYTHONPATH"])
    (tmp_path / "train.py").write_text(TRAIN)
    app = LiveApp(tmp_path / "runs", verdict_rest=_ENDLESS)
    see_verdicts(app, tmp_path, "going on", "ended")
    see_verdicts(app, tmp_path, "going on · attempt 2", "ended · attempt 2")


def see_verdicts(app: LiveApp, folder: Path, begun: str, ended: str) -> None:
    """Train, and wait for the verdicts of an attempt that goes on and of one that has ended."""

    def last_step_s() -> float:
        answer = app.get("/runs/going/charts/timeline")
        return float(json.loads(answer.text)["limits"][1]) if answer.status == 200 else 0.0

    def says(words: str) -> bool:
        answer = app.get("/runs/going/sections")
        return answer.status == 200 and json.loads(answer.text)["subtitle"].endswith(words)

    with started(folder, "--name", "going", "train.py", "600") as job:
        eventually(lambda: says(begun), "a verdict of what goes on", 120)
        seen_s = last_step_s()
        eventually(lambda: last_step_s() > seen_s, "newer records", 120)
        job.send_signal(signal.SIGINT)
        job.wait(60)
        eventually(lambda: says(ended), "a verdict of its end", 120)


def test_a_run_is_read_as_long_as_a_viewer_waits_for_it(tmp_path: Path):
    record(tmp_path, "done", "0")
    app = LiveApp(tmp_path / "runs", idle_s=0.0)
    for path in ("sections", "charts/timeline"):
        answer = app.get(f"/runs/done/{path}")
        assert answer.status == 200, answer.text


def test_charts_alone_have_no_verdict_made(tmp_path: Path):
    """As those of a comparison, which shows no verdicts."""
    folder = record(tmp_path, "done", "0") / "experiment"
    folder.mkdir(exist_ok=True)
    target = folder / "target.json"
    target.unlink(missing_ok=True)
    os.mkfifo(target)  # a process that makes a verdict with its page waits here
    app = LiveApp(tmp_path / "runs", idle_s=1.0)
    others = set(threading.enumerate())
    for chart in ("timeline", "heatmap", "timeline"):
        answer = app.get(f"/runs/done/charts/{chart}")
        assert answer.status == 200, answer.text
    eventually(
        lambda: set(threading.enumerate()) <= others, "the end of all that reads the run", 60
    )
    target.unlink()
    assert json.loads(app.get("/runs/done/sections").text)["subtitle"].endswith("ended")
