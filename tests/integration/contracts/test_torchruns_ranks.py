"""Ranks that torchrun started, each of them `headrace run`: one run (facts/launch.md, 5a)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from headrace.records.reader import Records
from jobs import DEADLINE_S, alive, attempts_of, clean_environment, headrace
from jobs_here import run_verb

# What a rank finds. At once: print writes in pieces, between those of the other rank.
SHOWS = """
names = ["RANK", "WORLD_SIZE", "HEADRACE_RUN_DIR", "SM_CHANNEL_TRAIN"]
line = " ".join(map(str, [*map(os.environ.get, names), sys.argv[1:]]))
os.write(1, (line + os.linesep).encode())
"""
TRAIN = (
    """
import atexit, os, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
met = torch.ones(1)
dist.all_reduce(met)
assert met.item() == 2
"""
    + SHOWS
    + """
dist.barrier()
atexit._run_exitfuncs()
os._exit(0)  # torch 2.13 may abort a rank that ends by itself on a busy host, as without us
"""
)
TOOL = """
import os
os.write(1, ("tool " + os.environ["RANK"] + os.linesep).encode())
"""


def torchrun(folder: Path, *arguments: str, script: str = TRAIN) -> Any:
    (folder / "train.py").write_text(script)
    # Ranks that torchrun starts anew may look for the dead ones (pytorch issue 135712) without it.
    environment = clean_environment(OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def only_run(folder: Path) -> Path:
    (path,) = (folder / "runs").iterdir()
    return path


def test_the_ranks_of_a_host_are_one_run_and_one_attempt(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "--no-python", *headrace("run"), "train.py", "--lr", "1")
    assert ended.returncode == 0, ended.stderr
    run = only_run(tmp_path)
    assert sorted(ended.stdout.splitlines()) == [
        f"{rank} 2 {run} None ['--lr', '1']" for rank in (0, 1)
    ]
    assert ended.stderr.count("headrace: run folder") == 1
    (attempt,) = attempts_of(run)
    assert (attempt["world_size"], attempt["exit_code"]) == (2, 0)
    logs = sorted(path.name for path in (run / "logs" / "attempt-1").iterdir())
    assert logs == [f"rank-{rank}.{end}" for rank in (0, 1) for end in ("stderr", "stdout")]
    steps = Records(run, 1).table("steps").to_pylist()
    assert {row["rank"] for row in steps} == {0, 1}
    assert "2 ranks" in run_verb(tmp_path, "top", str(run), "--once").stdout


def test_ranks_that_start_anew_are_the_next_attempt_and_a_failed_first_one_waits_for_none(
    tmp_path: Path,
) -> None:
    """The first attempt ends by rank 1, the second by rank 0, while the other waits."""
    script = """
import os, pathlib, signal, sys, time
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
if rank == restart:
    pathlib.Path("pid").write_text(str(os.getpid()))
    pathlib.Path(f"there-{restart}").touch()
    signal.pause()
while not pathlib.Path(f"there-{restart}").exists():
    time.sleep(0.01)
sys.exit(7 if restart == "0" else 5)
"""
    ended = torchrun(
        tmp_path,
        "--max-restarts=1",
        "--no-python",
        *headrace("run", "--profile=off"),
        "train.py",
        script=script,
    )
    assert ended.returncode != 0
    first, second = attempts_of(only_run(tmp_path))
    assert (first["exit_code"], second["exit_code"]) == (7, 5)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_what_the_first_rank_has_made_is_there_for_all(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1").touch()
    flags = ["--contract=sagemaker", "--channel=train=images", "--name=base", "--profile=off"]
    flags += ["--hyperparameter=lr=1"]
    started = ["-m", "headrace.cli.main", "run", *flags]
    ended = torchrun(tmp_path, *started, "train.py", script=f"import os, sys\n{SHOWS}")
    assert ended.returncode == 0, ended.stderr
    lines = sorted(ended.stdout.splitlines())
    assert [line.split()[:3] for line in lines] == [
        [str(rank), "2", str(tmp_path / "runs" / "base")] for rank in (0, 1)
    ]
    assert all(line.endswith("/data/train ['--lr', '1']") for line in lines)


def test_what_the_first_rank_is_refused_ends_all(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "--no-python", *headrace("run", "--profile=off", "--name=a/b"), "-m",
                     "train")  # fmt: skip
    assert ended.returncode != 0
    assert "--name 'a/b': a run's name is a plain folder name" in ended.stderr
    assert ended.stdout == ""


def test_what_a_rank_starts_beside_itself_is_a_run_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(TOOL)
    command = [*headrace("run", "--profile=off"), "tool.py"]
    script = f"import subprocess\nsubprocess.run({command}, check=True)\n"
    ended = torchrun(tmp_path, "train.py", script=script)
    assert sorted(ended.stdout.splitlines()) == ["tool 0", "tool 1"], ended.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 2
