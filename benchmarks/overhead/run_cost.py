"""What recording a run costs once, beyond its start-up: CPU time of all processes of a short run.

    python benchmarks/overhead/run_cost.py

The same short training runs with recording and with `--profile off`, in turns. Its first line takes
the CPU time of all processes so far, and what they have used when the last one has ended is taken
by this one, which has itself made the parent of whatever their parents leave behind.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from report import Row, write_section  # noqa: E402 - above this folder

PAGE = HERE.parents[1] / "docs" / "overhead.md"
STEPS = 80
MODES = {"on": (), "off": ("--profile", "off")}
NOTES = """
CPU time of all processes of a run of {steps} short steps with two workers, its verdict and its page
included: with recording less with `--profile off`, in turns, {rounds} of each. Start-up is what was
used at the script's first line.
"""
_SUBREAPER = 36  # of prctl(2): orphans become children of this process, so that they count


def main() -> None:
    """Measure, and write the section of docs/overhead.md, or print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=Path, help="this process is the script; writes this file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--print", action="store_true", help="leave the page as it is")
    options = parser.parse_args()
    if options.within:
        train(options.within)
        return
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    used_s("off")  # the disk's cache is warm after it
    rounds = []
    for number in range(options.rounds):
        modes = list(MODES)[:: -1 if number % 2 else 1]
        rounds.append({mode: used_s(mode) for mode in modes})
    added = [
        {part: found["on"][part] - found["off"][part] for part in found["on"]} for found in rounds
    ]
    rows = [
        Row("beyond start-up, CPU s a run", [each["rest"] for each in added], "<= 0.5"),
        Row("start-up, CPU s a run", [each["start"] for each in added], ""),
    ]
    notes = NOTES.strip().format(steps=STEPS, rounds=options.rounds)
    off_s = statistics.median(sum(found["off"].values()) for found in rounds)
    lines = [notes, "", f"A run without recording takes {off_s:.3g} s of CPU."]
    if options.print:
        print("\n".join([*lines, *(row.line() for row in rows)]))
        return
    command = f"python benchmarks/overhead/run_cost.py --rounds {options.rounds}"
    write_section("A run's CPU time", command, lines, rows, page=PAGE)


def used_s(mode: str) -> dict[str, float]:
    """Run the script; return the CPU seconds until its first line, and from there to the end."""
    before_s = ended_children_s()
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.json"
        subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", f"{folder}/run",
             *MODES[mode], __file__, "--within", str(first)],
            check=True, capture_output=True, env=environment(),
        )  # fmt: skip
        wait_for_all()
        start_s = json.loads(first.read_text())
    return {"start": start_s, "rest": ended_children_s() - before_s - start_s}


def environment() -> dict[str, str]:
    """Return the script's environment: what it imports is compiled once, as an installation is.

    MLflow hears nothing of the run, as that would cost the same with recording and without.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "RUN_COST_OF": str(os.getpid()), "HEADRACE_TRACKING_URI": "off"}


def wait_for_all() -> None:
    """Wait for what the run has left behind, such as a collector that writes its last rows."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def ended_children_s() -> float:
    """Return the CPU seconds of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def all_processes_s(first: int) -> float:
    """Return the CPU seconds of the processes below `first`, with those that have ended."""
    total = 0.0
    for process in psutil.Process(first).children(recursive=True):
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def train(first: Path) -> None:
    """Train a small network for some steps, as a user's script."""
    first.write_text(json.dumps(all_processes_s(int(os.environ["RUN_COST_OF"]))))
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(STEPS * 8, 64), torch.randint(10, (STEPS * 8,)))
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for values, labels in DataLoader(data, 8, num_workers=2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(values), labels).backward()
        optimizer.step()
        time.sleep(0.005)


if __name__ == "__main__":
    main()
