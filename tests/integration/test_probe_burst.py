"""Steps under torch.profiler, from the start of a job on: with `--profile deep`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.records.reading import open_records
from jobs import run

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)

def steps(count):
    for _, (x,) in zip(range(count), batches):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
"""
ENDS = {
    "a run that is over before the burst is": "steps(2)",
    "the script's own profiler": """
steps(2)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
    steps(3)
assert any("addmm" in each.key for each in own.key_averages())
""",
    "a profiler of the older kind": """
steps(2)
with torch.autograd.profiler.profile() as own:
    steps(3)
assert any("addmm" in each.key for each in own.key_averages())
""",
}


def events(folder: Path, kind: str) -> list[str]:
    rows = open_records(folder).table("events").to_pylist()
    return [row["text"] for row in rows if row["kind"] == kind]


def traced(folder: Path) -> list[dict[str, Any]]:
    (trace,) = events(folder, "trace")
    with gzip.open(trace) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


@pytest.mark.parametrize("end", ENDS, ids=str)
def test_what_ends_a_burst_leaves_its_trace_and_the_script_alone(tmp_path: Path, end: str):
    (tmp_path / "train.py").write_text(SCRIPT + ENDS[end])
    ended = run(tmp_path, "--run-dir", "r", "--profile", "deep", "train.py")
    assert ended.returncode == 0, ended.stderr
    names = [each.get("name") for each in traced(tmp_path / "r")]
    assert names.count("aten::addmm") == 1  # of the second step: that one trains is known then
    (short,) = events(tmp_path / "r", "trace-short")
    assert short.endswith(": fewer than 3 whole steps")
    assert events(tmp_path / "r", "probe-fault") == []


def test_a_burst_ends_where_another_loader_begins(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        SCRIPT
        + """
def evaluate():
    with torch.no_grad():
        for (x,) in DataLoader(batches.dataset, batch_size=8, num_workers=1):
            net(x)

evaluate()
steps(3)
evaluate()
"""
    )
    ended = run(tmp_path, "--run-dir", "r", "--profile", "deep", "train.py")
    assert ended.returncode == 0, ended.stderr
    names = [each.get("name") for each in traced(tmp_path / "r")]
    assert names.count("aten::addmm") == 2  # of the training steps but the first
    assert events(tmp_path / "r", "probe-fault") == []


def test_a_trace_that_is_too_large_is_dropped_and_told(tmp_path: Path):
    limited = "from headrace.observe.probe import burst\nburst.MOST_BYTES = 10\n"
    (tmp_path / "train.py").write_text(limited + SCRIPT + "steps(8)\n")
    ended = run(tmp_path, "--run-dir", "r", "--profile", "deep", "train.py")
    assert ended.returncode == 0, ended.stderr
    (dropped,) = events(tmp_path / "r", "trace-dropped")
    assert "larger than 10 bytes" in dropped
    assert list((tmp_path / "r" / "traces").iterdir()) == []
    assert events(tmp_path / "r", "trace") == []
