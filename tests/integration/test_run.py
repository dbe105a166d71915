"""`headrace run` with real torchrun: direct runs, restarts, help, wrong use."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from headrace.records.layout import read_metrics
from jobs import (
    DEADLINE_S,
    attempts_of,
    clean_environment,
    eventually,
    headrace,
    run,
    started,
)
from jobs_here import run_job

DIRECT = """
import json, multiprocessing, os, sys

def square(n):
    return n * n

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        squares = pool.map(square, [1, 2, 3])
    result = {"argv": sys.argv[1:], "rank": os.environ.get("RANK"), "squares": squares,
            "run_dir": os.environ["HEADRACE_RUN_DIR"], "typed": sys.stdin.read()}
    print(json.dumps(result))
    print("to stderr", file=sys.stderr)
    sys.exit(7)
"""

TWO_RANKS = """
import json, os, pathlib, signal, sys, time

rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
names = ["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"]
print(json.dumps({name: os.environ[name] for name in names} | {"rank": rank}), flush=True)
print(f"restart {restart}", file=sys.stderr)
if restart == 0 or "fail" in sys.argv:
    other_spoke = pathlib.Path(f"rank-0-spoke-{restart}")
    if rank == 1:
        while not other_spoke.exists():  # its failure ends the other
            time.sleep(0.01)
        raise SystemExit(9) if restart == 0 else ValueError("the cause")
    other_spoke.touch()
    signal.pause()
"""


def test_without_torchrun_the_script_runs_directly(tmp_path: Path):
    (tmp_path / "train.py").write_text(DIRECT)
    ended = run(tmp_path, "--name", "base", "train.py", "--name", "x", stdin="yes\n")
    assert ended.returncode == 7
    result = json.loads(ended.stdout)
    folder = tmp_path / "runs" / "base"
    assert result == {
        "argv": ["--name", "x"],
        "rank": None,
        "squares": [1, 4, 9],
        "run_dir": str(folder),
        "typed": "yes\n",
    }
    assert "to stderr" in ended.stderr
    assert "train.py: exit code 7" in ended.stderr
    assert (folder / "logs" / "attempt-1" / "rank-0.stdout").read_text() == ended.stdout
    (attempt,) = attempts_of(folder)
    assert attempt["command"] == ["headrace", "run", "--name=base", "train.py", "--name", "x"]
    assert (attempt["world_size"], attempt["exit_code"]) == (1, 7)


def test_help_is_the_scripts_where_it_stands_behind_it(tmp_path: Path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    for flags in ([], ["--"]):
        ended = run(tmp_path, "--profile", "off", *flags, "train.py", "--help")
        assert ended.stdout == "['--help']\n", ended.stderr
    assert "Usage: headrace run" in run(tmp_path, "--profile", "off", "--help", "train.py").stdout


def test_torchrun_restarts_ranks_and_the_end_is_reported(tmp_path: Path):
    (tmp_path / "train.py").write_text(TWO_RANKS)
    flags = [
        "--nproc_per_node=2",
        "--max-restarts",
        "1",
        "--run-dir",
        "here",
        "--shutdown-timeout=5",
    ]
    ended = run_job(tmp_path, *flags, "train.py", "fail")
    assert ended.returncode == 1  # of the ValueError, after the restart that 9 led to
    logs = tmp_path / "here" / "logs" / "attempt-1"
    for rank in range(2):
        result = json.loads((logs / "restart-1" / f"rank-{rank}.stdout").read_text())
        assert (result["rank"], result["WORLD_SIZE"], result["LOCAL_RANK"]) == (
            rank,
            "2",
            str(rank),
        )
        assert (logs / f"rank-{rank}.stderr").read_text() == "restart 0\n"
        assert ended.stdout.count(f"[rank {rank}] {{") == 2
    assert ended.stderr.count("OMP_NUM_THREADS") == 1
    tail = ended.stderr[ended.stderr.index("headrace: rank 1 failed first: exit code 1") :]
    assert "ValueError: the cause" in tail
    assert str(logs / "restart-1" / "rank-1.stderr") in tail
    (attempt,) = attempts_of(tmp_path / "here")
    assert (attempt["world_size"], attempt["exit_code"]) == (2, 1)


CRASHING = """
import ctypes, os, sys

if os.environ["RANK"] == "1":
    ctypes.string_at(0)
"""


def test_a_rank_that_crashes_in_native_code_is_reported_with_its_line(tmp_path: Path):
    (tmp_path / "train.py").write_text(CRASHING)
    ended = run_job(tmp_path, "--nproc-per-node=2", "train.py")
    assert ended.returncode == 128 + signal.SIGSEGV
    tail = ended.stderr[ended.stderr.index("headrace: rank 1 failed") :]
    assert "killed by SIGSEGV (exit code 139)" in tail.splitlines()[0]
    assert "Fatal Python error: Segmentation fault" in tail
    assert f'File "{tmp_path / "train.py"}", line 5 in <module>' in tail


GROWING = """
import os, signal

print(os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if os.environ["WORLD_SIZE"] == "1":
    signal.pause()  # until another host joins
"""


def test_a_host_that_joins_costs_the_others_none_of_their_logs(tmp_path: Path):
    (tmp_path / "train.py").write_text(GROWING)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
    flags = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    flags += ["--rdzv-conf", "last_call_timeout=1", "--profile", "off", "--run-dir", "here"]
    flags += ["../train.py"]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    logs = first / "here" / "logs" / "attempt-1"
    alone = logs / "rank-0.stdout"
    with started(first, *flags) as job:
        eventually(lambda: alone.exists() and alone.read_text(), "a rank alone")
        with started(second, *flags) as joining:
            assert joining.wait(timeout=DEADLINE_S) == 0
            assert job.wait(timeout=DEADLINE_S) == 0
    assert alone.read_text() == "1 0\n"
    # Where the other is late, torchrun first meets again with one host, and then once more.
    together = max(logs.glob("restart-*/rank-*.stdout"))
    assert together.read_text() == "2 0\n"  # torchrun counts no restart


def test_a_rank_s_own_code_comes_back_through_torchrun(tmp_path: Path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").write_text(TWO_RANKS)
    flags = ["--profile", "off", "--nproc-per-node", "2", "--tee", "1:3"]
    ended = run_job(tmp_path, *flags, "-m", "pkg.train")
    assert ended.returncode == 9
    assert "[default1]:restart 0" in ended.stderr  # what torchrun is asked about output, it does


def test_metrics_are_read_where_torchrun_writes_its_own_logs(tmp_path: Path):
    (tmp_path / "train.py").write_text("import os\nprint('loss=' + os.environ['RANK'])\n")
    ended = run_job(
        tmp_path, "--profile", "off", "--run-dir", "r", "--nproc-per-node", "2", "--log-dir", "own",
        "--redirects", "3", "--metric", "loss=loss=([0-9]+)", "train.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "no rank printed" not in ended.stderr
    found = sorted((row["source"], row["value"]) for row in read_metrics(tmp_path / "r"))
    assert found == [("rank-0", 0.0), ("rank-1", 1.0)]
    assert len(list((tmp_path / "own").rglob("stdout.log"))) == 2


@pytest.mark.parametrize(
    ("variables", "damage", "message"),
    [
        ({}, "shutil.rmtree('runs')", "No such file or directory"),
        (
            {"PET_NPROC_PER_NODE": "auto"},
            "pathlib.Path('runs/base/run.json').write_text('{')",
            "run.json cannot be read",
        ),
    ],
)
def test_the_script_s_code_comes_back_where_the_end_cannot_be_written_down(
    tmp_path: Path, variables: dict[str, str], damage: str, message: str
):
    """Directly, and as one rank under torchrun, which speaks without a prefix."""
    (tmp_path / "train.py").write_text(
        f"import os, pathlib, shutil, sys; print('rank', os.environ.get('RANK')); {damage}\n"
        "sys.exit(7)\n"
    )
    ended = run_job(tmp_path, "--name", "base", "--profile", "off", "train.py", **variables)
    assert (ended.returncode, ended.stdout) == (7, f"rank {0 if variables else None}\n")
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "cannot be written down" in line]
    assert message in line


@pytest.mark.parametrize(
    ("flags", "closed", "shown", "is_printed"),
    [
        ([], "<&-", "out\n", True),
        ([], ">&-", "", True),
        ([], "2>&-", "out\n", False),
        ([], "<&- >&- 2>&-", "", False),
        (["--nproc-per-node", "1"], "<&- >&- 2>&-", "", False),
    ],
)
def test_a_script_runs_where_standard_streams_are_closed(
    tmp_path: Path, flags: list[str], closed: str, shown: str, is_printed: bool
):
    (tmp_path / "train.py").write_text(
        "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    )
    command = headrace("run", "--profile", "off", "--run-dir", "here", *flags, "train.py")
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 7
    assert ended.stdout == shown
    assert ("headrace: run folder" in ended.stderr) is is_printed
    logs = tmp_path / "here" / "logs" / "attempt-1"
    assert (logs / "rank-0.stdout").read_text() == "out\n"
    assert "err\n" in (logs / "rank-0.stderr").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "headrace: There is no script absent.py"),
        (["--nprocs", "2", "train.py"], "headrace: There is no flag --nprocs. Did you mean"),
        ([], "headrace: headrace run needs a script"),
    ],
)
def test_wrong_use_is_one_message_and_leaves_no_run(tmp_path: Path, arguments, message: str):
    ended = run_job(tmp_path, *arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith(message)
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_flag_that_torch_itself_does_not_check_is_one_message(tmp_path: Path):
    (tmp_path / "train.py").touch()
    ended = run(tmp_path, "--nproc-per-node=1", "--event-log-handler=nope", "train.py")
    assert ended.returncode == 1
    assert "torchrun could not run the job: KeyError: 'nope'." in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_is_ours_before_the_script_and_the_script_s_after_it(tmp_path: Path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    assert "Example: headrace run" in run_job(tmp_path, "--help").stdout
    assert run_job(tmp_path, "--profile", "off", "train.py", "--help").stdout == "['--help']\n"
