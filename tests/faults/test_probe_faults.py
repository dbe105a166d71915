"""Scripts that do odd things: they run as without the probe, and what can be recorded is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from headrace.records.reader import open_records
from jobs import alive, eventually, run_here

TRAINS = """
import os, signal, sys, time
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
steps(20)
ends_at = time.monotonic() + 1
while time.monotonic() < ends_at:
    steps(1)
    time.sleep(0.01)
"""
RINGS = os.path.join("out", "records", "attempt-1", "rings")  # noqa: PTH118 - in a script, too


def run(folder: Path, code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this code."""
    (folder / "odd.py").write_text(code)
    return run_here(folder, "run", "--run-dir", "out", *(flags or ("odd.py",)), "one", "two")


def recorded(folder: Path) -> int:
    kinds = open_records(folder / "out").table("steps").column("kind").to_pylist()
    return kinds.count("train")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import no_such_module", 1),
        ("import torch; raise SystemExit(4)", 4),
        ("import os; os._exit(5)", 5),
        ("print('nothing to train')", 0),
    ],
)
def test_a_script_that_takes_no_step(tmp_path: Path, code: str, exit_code: int):
    ended = run(tmp_path, code)
    assert ended.returncode == exit_code
    assert "No training step was recorded" in ended.stderr
    assert "Traceback" not in ended.stderr or "no_such_module" in ended.stderr


def test_a_module_is_run_by_name_and_forks_and_fails(tmp_path: Path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    code = """
print(__name__, sys.argv[1:], flush=True)
steps(20)
child = os.fork()
steps(20)
if not child: os._exit(0)
os.waitpid(child, 0)
raise RuntimeError("out of luck")
"""
    (tmp_path / "package" / "train.py").write_text(TRAINS + code)
    ended = run(tmp_path, "", "-m", "package.train")
    assert ended.returncode == 1, ended.stderr
    assert "out of luck" in ended.stderr
    assert ended.stdout == "__main__ ['one', 'two']\n"
    # The child is not taken for its parent: these are the parent's own.
    assert recorded(tmp_path) == 40
    assert len(open_records(tmp_path / "out").table("processes")) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "import shutil; shutil.rmtree('out/records')",
        # A folder that takes no new file, as on a full disk.
        f"import os; os.rmdir({RINGS!r}); open({RINGS!r}, 'w').close()",
    ],
    ids=["records vanish", "disk is full"],
)
def test_a_script_that_cannot_be_recorded_runs_on(tmp_path: Path, damage: str):
    ended = run(tmp_path, f"{damage}\n{TRAINS}steps(20); print('done')")
    assert ended.stdout == "done\n"
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


def test_a_rank_that_changes_its_folder_and_arguments_is_killed_before_its_worker_has_begun(
    tmp_path: Path,
):
    """What it did is recorded, and the worker ends."""
    code = """
from torch.utils.data import DataLoader
def init(worker):
    with open(before + "/pid", "w") as file: file.write(str(os.getpid()))
    rank = os.getppid()
    os.kill(rank, signal.SIGKILL)
    while os.getppid() == rank: time.sleep(0.01)
for x in DataLoader([torch.ones(4)] * 40, 2, num_workers=1, worker_init_fn=init): steps(1)
"""
    changes = "before = os.getcwd(); os.chdir('/'); sys.argv[:] = ['other']\n"
    ended = run(tmp_path, TRAINS + changes + GOES_ON + code)
    assert ended.returncode == 137, ended.stderr
    assert recorded(tmp_path) >= 20  # before it was killed
    worker = int((tmp_path / "pid").read_text())
    eventually(lambda: not alive(worker), "the worker notices that its rank is gone")
