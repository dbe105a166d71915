"""What it costs a step to log many scalars by headrace.experiments.

    python benchmarks/overhead/log_cost.py

A script trains a small network at 20 steps a second: each step waits for the rest of 50 ms, as for
an accelerator. Blocks of steps that log 100 scalars alternate with blocks that log none, while a
sidecar sends to MLflow's SQLite database what was logged. At the end MLflow has to have each point.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from report import Row, write_section  # noqa: E402 - above this folder

PAGE = HERE.parents[1] / "docs" / "overhead.md"
STEP_S, SCALARS, BLOCK_STEPS, SETTLING_STEPS = 0.05, 100, 20, 2
NOTES = """
A script trains a network of three layers at {rate:.0f} steps a second for {seconds:.0f} s: a step
waits for the rest of {step_ms:.0f} ms, as for an accelerator. Blocks of {block} steps that log
{scalars} scalars each alternate with blocks that log none, in each of {rounds} runs; the first
{settling} steps of a block do not count. A sidecar sends to SQLite meanwhile, at the lowest
priority. A call is timed right after the script has made its dict of scalars; that is timed, too.
"""
FIGURES = {
    "call, us": "<= 20",
    "making the dict and the call, us": "",
    "... share of a step": "<= 0.005",
    "logging / without, step time": "<= 1.005",
    "added CPU of the training thread, us a step": "",
    "points missing": "<= 0",
    "wait at the end, s": "",
}


def main() -> None:
    """Measure, and write the section of docs/overhead.md, or print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", action="store_true", help="this process is the script")
    parser.add_argument("--seconds", type=float, default=120.0, help="that a run trains")
    parser.add_argument("--rounds", type=int, default=3, help="runs")
    parser.add_argument("--print", action="store_true", help="leave the page as it is")
    options = parser.parse_args()
    if options.within:
        print(json.dumps(measured(options.seconds)))
        return
    runs = [run_script(options.seconds) for _ in range(options.rounds)]
    rows = [Row(name, [run[name] for run in runs], target) for name, target in FIGURES.items()]
    notes = NOTES.strip().format(
        rate=1 / STEP_S, seconds=options.seconds, step_ms=STEP_S * 1000, block=BLOCK_STEPS,
        scalars=SCALARS, rounds=options.rounds, settling=SETTLING_STEPS,
    )  # fmt: skip
    command = "python benchmarks/overhead/log_cost.py"
    write_section("Logging scalars", command, [notes], rows, page=PAGE, dry=options.print)


def run_script(seconds: float) -> dict[str, float]:
    """Run the script in a folder of its own, and return what it has measured."""
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [sys.executable, __file__, "--within", "--seconds", str(seconds)],
            stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, "HEADRACE_RUNS_DIR": folder, "MLFLOW_TRACKING_URI": ""},
        )  # fmt: skip
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def measured(seconds: float) -> dict[str, float]:
    """Train and log, and return the figures."""
    import torch
    from torch import nn

    from headrace import experiments

    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    names = [f"scalar_{number}" for number in range(SCALARS)]
    calls_s: list[float] = []
    with_dict_s: list[float] = []  # the script's own dict included
    steps_s: dict[bool, list[float]] = {True: [], False: []}
    cpu_s: dict[bool, list[float]] = {True: [], False: []}
    logged = 0
    experiments.start_run("measured")
    for number in range(round(seconds / STEP_S)):
        logs = number // BLOCK_STEPS % 2 == 0
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        loss = net(torch.randn(64, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if logs:
            value = loss.item()
            dict_s = time.perf_counter()
            scalars = dict.fromkeys(names, value)
            call_s = time.perf_counter()
            experiments.log_time_series_metrics(scalars, step=number)
            returned_s = time.perf_counter()
            calls_s.append(returned_s - call_s)
            with_dict_s.append(returned_s - dict_s)
            logged += SCALARS
        worked_s = time.perf_counter() - began_s
        time.sleep(max(STEP_S - worked_s, 0.0))
        if number % BLOCK_STEPS >= SETTLING_STEPS:
            steps_s[logs].append(worked_s)
            cpu_s[logs].append(time.thread_time() - began_cpu_s)
    ended_s = time.perf_counter()
    experiments.end_run()
    wait_s = time.perf_counter() - ended_s
    frame = experiments.ExperimentRun("measured").get_time_series_data_frame()
    there = int(frame[names].count().sum())
    median = statistics.median
    added_s = statistics.mean(steps_s[True]) - statistics.mean(steps_s[False])
    added_cpu_s = median(cpu_s[True]) - median(cpu_s[False])
    values = (
        median(calls_s) * 1e6, median(with_dict_s) * 1e6, statistics.mean(with_dict_s) / STEP_S,
        (STEP_S + added_s) / STEP_S, added_cpu_s * 1e6, logged - there, wait_s,
    )  # fmt: skip
    return dict(zip(FIGURES, values, strict=True))


if __name__ == "__main__":
    main()
