"""Scripts that do odd things: they run as without the probe, and what can be told is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.records.reading import open_records
from jobs import alive, eventually

TRAINS = """
import torch
from torch import nn
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def steps(count):
    for _ in range(count):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
# Twenty steps, and a second more: a process that is killed loses no more than that.
GOES_ON = """
import time
steps(20)
killed_at = time.monotonic() + 1
while time.monotonic() < killed_at:
    steps(1)
"""


def run(folder: Path, code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this code."""
    (folder / "odd.py").write_text(code)
    headrace = [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", "out"]
    return subprocess.run(
        [*headrace, *(flags or ("odd.py",)), "one", "two"],
        capture_output=True, text=True, check=False, cwd=folder, timeout=120,
    )  # fmt: skip


def recorded(folder: Path) -> int:
    return int(open_records(folder / "out").table("steps").num_rows)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import no_such_module", 1),
        ("import sys; sys.exit(3)", 3),
        ("import torch; raise SystemExit(4)", 4),
        ("import os, torch; os._exit(5)", 5),
        ("print('nothing to train')", 0),
    ],
)
def test_a_script_that_takes_no_step(tmp_path: Path, code: str, exit_code: int):
    ended = run(tmp_path, code)
    assert ended.returncode == exit_code
    assert "No training step was recorded" in ended.stderr
    assert "Traceback" not in ended.stderr or "no_such_module" in ended.stderr


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (TRAINS + "import os; os.chdir('/'); steps(20)", 0),
        (TRAINS + "import sys; sys.argv[:] = ['other']; steps(20)", 0),
        (TRAINS + GOES_ON + "import os; os._exit(6)", 6),
        (TRAINS + "steps(20); raise RuntimeError('out of luck')", 1),
        (TRAINS + GOES_ON + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_a_script_that_trains_and_then_does_something_odd(
    tmp_path: Path, code: str, exit_code: int
):
    ended = run(tmp_path, code)
    assert ended.returncode == exit_code, ended.stderr
    assert recorded(tmp_path) >= 20


def test_a_module_is_run_by_name(tmp_path: Path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    told = "import sys; print(__name__, sys.argv[1:]); steps(20)"
    (tmp_path / "package" / "train.py").write_text(TRAINS + told)
    ended = run(tmp_path, "", "-m", "package.train")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "__main__ ['one', 'two']\n"
    assert recorded(tmp_path) == 20


def test_a_child_that_is_forked_is_not_taken_for_its_parent(tmp_path: Path):
    code = (
        TRAINS
        + "import os; steps(20); child = os.fork(); steps(20)\nif child: os.waitpid(child, 0)"
    )
    ended = run(tmp_path, code)
    assert ended.returncode == 0, ended.stderr
    assert recorded(tmp_path) == 40  # the parent's own
    assert len(open_records(tmp_path / "out").table("processes")) == 1


def test_a_script_whose_records_folder_vanishes_runs_on(tmp_path: Path):
    code = "import os, shutil; shutil.rmtree('out/records')\n" + TRAINS + "steps(20); print('done')"
    ended = run(tmp_path, code)
    assert ended.stdout == "done\n"
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


def test_a_script_whose_disk_is_full_of_rings_runs_on(tmp_path: Path):
    """A folder that takes no new file, as on a full disk."""
    code = (
        "import os; rings = os.path.join('out', 'records', 'attempt-1', 'rings')\n"
        "os.rmdir(rings); open(rings, 'w').close()\n" + TRAINS + "steps(20); print('done')"
    )
    ended = run(tmp_path, code)
    assert ended.stdout == "done\n"
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


def test_a_worker_whose_rank_is_killed_before_it_has_begun_ends(tmp_path: Path):
    code = (
        TRAINS
        + """
import os, signal, time
from torch.utils.data import DataLoader
def init(worker):
    with open("pid", "w") as file: file.write(str(os.getpid()))
    rank = os.getppid()
    os.kill(rank, signal.SIGKILL)
    while os.getppid() == rank: time.sleep(0.01)
for x in DataLoader([torch.ones(4)] * 40, 2, num_workers=1, worker_init_fn=init): steps(1)
"""
    )
    ended = run(tmp_path, code)
    assert ended.returncode == 137, ended.stderr
    worker = int((tmp_path / "pid").read_text())
    eventually(lambda: not alive(worker), "the worker notices that its rank is gone")
