"""Scripts for SageMaker and Vertex AI, unmodified, on hosts that Headrace emulates by itself.

On those of a Ray cluster: ../test_cluster_run.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from jobs_here import run_job, run_verb

SCRIPT_MODE = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
args = parser.parse_args()
print(os.environ["SM_CURRENT_HOST"], args.epochs, os.listdir(args.train), flush=True)
print("ENVIRONMENT", json.dumps([dict(os.environ), sys.argv[1:]]), flush=True)
"""
HOSTS = ["--group", "gpu=1", "--group", "cpu=1"]
THREE_HOSTS = ["--group", "gpu=2", "--group", "cpu=1"]


def test_a_script_mode_script_on_each_host_has_the_variables_that_cluster_env_prints(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").touch()
    (tmp_path / "train.py").write_text(SCRIPT_MODE)
    flags = [*THREE_HOSTS, "--contract=sagemaker", "--contract=vertex", "--hyperparameter=epochs=2"]
    flags += ["--channel=train=data"]
    ended = run_job(tmp_path, "--name", "job", *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("runs/job/hosts/*/ml/output/success"))) == 3
    for number, host in enumerate(["gpu/gpu-0", "gpu/gpu-1", "cpu/cpu-0"]):
        assert f"[{host}] algo-{number + 1} 2 ['a.txt']\n" in ended.stdout
        begin = f"[{host}] ENVIRONMENT "
        (line,) = [line for line in ended.stdout.splitlines() if line.startswith(begin)]
        environment, arguments = json.loads(line.removeprefix(begin))
        shown = run_verb(tmp_path, "cluster", "env", *flags, f"--host=algo-{number + 1}", "--json")
        printed = json.loads(shown.stdout)
        assert printed["arguments"] == arguments
        assert len(printed["variables"]) > 50
        # Of the run's own folder, and of a port that may be taken.
        places = ("AIP_", "SM_MODULE_DIR", "SM_TRAINING_ENV", "SM_MASTER_PORT", "MASTER_PORT")
        for name, value in printed["variables"].items():
            if not name.startswith(places):
                assert environment[name] == value, name


def test_a_host_that_fails_is_named_and_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n"
        "    raise ValueError('no data here')\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    flags = ["--profile", "off", "--run-dir", "r", *THREE_HOSTS, "--contract", "sagemaker"]
    ended = run_job(tmp_path, *flags, "train.py")
    assert ended.returncode == 1
    assert "headrace: gpu-1 failed: exit code 1\n" in ended.stderr
    # From the host, and in the launcher's own message.
    assert ended.stderr.count("ValueError: no data here") == 2
    failure = tmp_path / "r" / "hosts" / "algo-2" / "ml" / "output" / "failure"
    assert "no data here" in failure.read_text()
    attempts = json.loads((tmp_path / "r" / "run.json").read_text())["attempts"]
    assert attempts[0]["exit_code"] == 1


def test_no_host_begins_where_one_has_no_share(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('here', flush=True)\n")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "only.jpg").touch()
    channel = '{"uri": "images", "distribution": "ShardedByS3Key"}'
    flags = ["--engine", "local", *HOSTS, "--profile", "off", "--contract", "sagemaker"]
    ended = run_job(tmp_path, *flags, f"--channel=train={channel}", "train.py")
    assert ended.returncode == 2
    assert "headrace: cpu-0: --channel train=images: 1 files cannot be shared by 2" in ended.stderr
    assert "here" not in ended.stdout  # the other one was ready long before
    assert "failed" not in ended.stderr


def test_ranks_of_emulated_hosts_meet_without_ray_and_without_a_contract(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\n"
        "rank, size = os.environ['RANK'], int(os.environ['WORLD_SIZE'])\n"
        "pathlib.Path(f'rank-{rank}').touch()\n"
        "while len(list(pathlib.Path.cwd().glob('rank-*'))) < size:\n"
        "    time.sleep(0.01)\n"
        "print('rank', rank, 'of', size, flush=True)\n"
    )
    flags = ["--profile", "off", "--group", "gpu=2", "--nproc-per-node", "2"]
    ended = run_job(tmp_path, *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    for rank in range(4):
        assert f"[gpu/gpu-{rank // 2}:{rank}] rank {rank} of 4\n" in ended.stdout
