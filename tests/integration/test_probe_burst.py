"""Steps under torch.profiler: what ends a burst leaves its trace, and the script alone."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from recorded import Run, check, record

# The first burst is that of `--profile deep`; each of the others is switched on by the script.
SCRIPT = """
import sys
from pathlib import Path
import torch
from points import Descent
from torch.utils.data import DataLoader, TensorDataset
from headrace.observe.probe import profiler_trace
from headrace.records.live_switch import LiveSwitch

net = torch.nn.Linear(8, 2)
optimizer = Descent(net.parameters())
samples = TensorDataset(torch.randn(80_000, 8))
batches = DataLoader(samples, batch_size=8)
(switch,) = Path(sys.argv[1]).glob("records/*/switch")

def train(x):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()

def steps(count):
    for _, (x,) in zip(range(count), batches):
        train(x)

def traced_steps(count):
    LiveSwitch(switch.parent).go_deep(60)
    for (x,) in batches:
        train(x)
        count -= profiler_trace.PROFILER_TRACE.under_way
        if not count:
            return

def whole_burst():
    LiveSwitch(switch.parent).go_deep(60)
    began = False
    for (x,) in batches:
        train(x)
        if began and not profiler_trace.PROFILER_TRACE.under_way:
            return
        began = began or profiler_trace.PROFILER_TRACE.under_way

def evaluate():
    with torch.no_grad():
        for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8, num_workers=1):
            net(x)

steps(2)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
    steps(3)
assert any("addmm" in each.key for each in own.key_averages())
traced_steps(1)
with torch.autograd.profiler.profile() as own:
    steps(3)
assert any("addmm" in each.key for each in own.key_averages())
traced_steps(2)
evaluate()
limit, profiler_trace.MAX_TRACE_BYTES = profiler_trace.MAX_TRACE_BYTES, 10
whole_burst()
profiler_trace.MAX_TRACE_BYTES = limit
traced_steps(1)
"""
STEPS = {
    "the script's own profiler": 1,  # the second step: that one trains is known then
    "a profiler of the older kind": 1,
    "another loader begins": 2,
    "the run is over": 1,
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("burst")
    (folder / "train.py").write_text(SCRIPT)
    arguments = (str(folder / "run"),)
    run = record(folder, folder / "train.py", *arguments, flags=("--profile", "deep"))
    check(run)
    return run


def events(run: Run, kind: str) -> list[str]:
    return [row["text"] for row in run.rows("events") if row["kind"] == kind]


def content(trace: str) -> list[dict[str, Any]]:
    with gzip.open(trace) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def test_what_ends_a_burst_leaves_its_trace_and_the_script_alone(job: Run):
    traces, short = events(job, "trace"), events(job, "trace-short")
    assert len(traces) == len(short) == len(STEPS)
    for trace, text, (end, steps) in zip(traces, short, STEPS.items(), strict=True):
        names = [each.get("name") for each in content(trace)]
        assert names.count("aten::addmm") == steps, end
        assert text.endswith(": fewer than 3 whole steps")


def test_a_trace_that_is_too_large_is_dropped_with_a_record_of_it(job: Run):
    (dropped,) = events(job, "trace-dropped")
    assert "larger than 10 bytes" in dropped
    left = sorted(str(path) for path in (job.folder / "traces").iterdir())
    assert left == sorted(events(job, "trace"))
