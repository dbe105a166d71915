"""A job that hangs is diagnosed while it does and after its end; no worker is left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from headrace import open_run
from jobs import DEADLINE_S, alive, descendants, eventually, run_here, started

SCRIPT = """
import pathlib, threading, time, torch
from torch.utils.data import DataLoader, Dataset

LOCK = threading.Lock()

class Rows(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if index >= 40:
            pathlib.Path("stuck").touch()
            with LOCK:  # held by a thread of the parent as it forked
                pass
        return torch.ones(8)

torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
LOCK.acquire()
for batch in DataLoader(Rows(), 2, num_workers=2):
    net(batch).sum().backward()
    optimizer.step()
"""
LINE = 1 + SCRIPT.splitlines().index(
    "            with LOCK:  # held by a thread of the parent as it forked"
)
LASTS_S = 13.0  # longer than waits that may end soon


def test_a_hanging_job_tells_the_line_and_its_workers_live_and_after_its_end(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    with started(tmp_path, "--run-dir", "r", "train.py") as job:
        stuck = tmp_path / "stuck"
        eventually(stuck.exists, "the hanging worker")
        since_s = stuck.stat().st_mtime
        eventually(lambda: time.time() - since_s > LASTS_S, "a wait that is too long")
        words = [
            "The script has waited for its batch for",
            f"in Rows.__getitem__ at train.py:{LINE} in workers 0 and 1",
        ]
        for verb in ("doctor", "top"):
            shown = " ".join(run_here(tmp_path, verb, "r", COLUMNS="200").stdout.split())
            assert [each for each in words if each not in shown] == []
        everyone = descendants(job.pid)
        assert len(everyone) >= 5  # subreaper, collector, script, workers
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=DEADLINE_S) == 128 + signal.SIGTERM
        eventually(lambda: not any(map(alive, everyone)), "the end of all")
    shown = " ".join((tmp_path / "terminal").read_text().split())
    assert [each for each in words if each not in shown] == []


STARTS = """
import os, sys, threading, time, torch
from torch.utils.data import DataLoader, TensorDataset

class Rows(TensorDataset):
    def __init__(self):
        super().__init__(torch.ones(8, 8))
        if os.fork() == 0:  # Python 3.12 warns of this in a process of several threads
            os._exit(0)
        time.sleep(float(sys.argv[1]))  # a download

for (batch,) in DataLoader(Rows(), 2):
    torch.nn.Linear(8, 1)(batch).sum().backward()
os._exit(0)
"""


def test_a_job_that_hangs_before_it_asks_for_a_batch_tells_the_line(tmp_path: Path):
    (tmp_path / "train.py").write_text(STARTS)
    words = ["The script has begun no step for", "in Rows.__init__ at train.py:10"]
    with started(tmp_path, "--run-dir", "r", "train.py", "1000") as job:

        def tells(*verb: str) -> bool:
            shown = " ".join(run_here(tmp_path, *verb, "r", COLUMNS="200").stdout.split())
            return all(each in shown for each in words)

        eventually((tmp_path / "r/run.json").exists, "the run folder")
        eventually(lambda: tells("doctor"), "the line")
        eventually(lambda: tells("top", "--once"), "the same")  # what is drained of the records
        job.kill()
        job.wait(timeout=DEADLINE_S)
    assert tells("doctor")


def test_a_late_start_is_no_hang_once_the_job_trains(tmp_path: Path):
    (tmp_path / "train.py").write_text(STARTS)
    with started(tmp_path, "--run-dir", "r", "train.py", str(LASTS_S)) as job:
        assert job.wait(timeout=DEADLINE_S) == 0
    stacks = open_run(tmp_path / "r").arrow("startup_stacks").column("stack").to_pylist()
    assert len(stacks) > LASTS_S / 2
    assert [not each for each in stacks] == [False] * (len(stacks) - 1) + [True]
    assert "has begun no step" not in (tmp_path / "terminal").read_text()
    events = open_run(tmp_path / "r").arrow("events").column("kind").to_pylist()
    assert (events.count("rank-ended"), events.count("script-ended")) == (0, 1)
