"""Reference case B as it was published: its script makes a Ray cluster of the job's hosts itself.

The hosts are emulated, in a PID namespace where one can be made: there the script takes Ray down by
`ray stop`, which ends all of Ray that it sees. facts/reference.md, B; facts/launch.md, 5b.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from jobs import clean_environment
from machine import missing
from pip_environments import make_environment, make_wheel

pytestmark = pytest.mark.timeout(300)  # Ray starts some twenty processes

LAUNCH = """
import pathlib, sys
from headrace.sagemaker import InstanceGroup, PyTorch

gpu_group = InstanceGroup("gpu", "ml.g5.xlarge", 1)
cpu_group = InstanceGroup("cpu", "ml.c5.4xlarge", int(sys.argv[1]))
estimator = PyTorch(
    entry_point="train.py", source_dir="code", framework_version="2.0.0", py_version="py310",
    role="role", job_name="heterogeneous", instance_groups=[gpu_group, cpu_group],
    hyperparameters={"port": int(sys.argv[2]), "down": sys.argv[3]},
)
estimator.fit()
pid = pathlib.Path("runs/heterogeneous/pid").read_text()
try:
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
except FileNotFoundError:
    state = "gone"
print("afterwards", state)
"""
TRAIN = """
import argparse, os, pathlib, socket, subprocess, time
import ray, ray.data, tinyhr
from sagemaker_training.environment import Environment

parser = argparse.ArgumentParser()
parser.add_argument("--port")
parser.add_argument("--down")
args = parser.parse_args()
env = Environment()
head = env.instance_groups_dict["gpu"]["hosts"][0]
folder = pathlib.Path(os.environ["HEADRACE_RUN_DIR"])


def shell(command):
    return subprocess.run(command, shell=True, stdout=subprocess.DEVNULL).returncode


def pids_of(program):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:  # a zombie has no command line
            if path.read_text().split("\\0")[0].endswith(program):
                found.append(path.parent.name)
        except OSError:
            pass
    return found


def prepare(batch):
    batch["id"] = batch["id"] * 2
    batch["host"] = [os.environ["SM_CURRENT_HOST"] + " " + tinyhr.VERSION] * len(batch["id"])
    batch["pid"] = [os.getpid()] * len(batch["id"])
    return batch


if env.current_host == head:
    assert shell(f"ray start --head --port={args.port}") == 0
    ray.init()
    hosts = [host for group in env.instance_groups_dict.values() for host in group["hosts"]]
    while sum(name.startswith("node:1") for name in ray.available_resources()) < len(hosts):
        time.sleep(0.1)
    print("nodes", sorted(node["NodeManagerAddress"] for node in ray.nodes()), flush=True)
    ids = ray.data.range(8, override_num_blocks=2)
    rows = ids.map_batches(prepare, resources={"preparation": 0.1}).take_all()
    print("sum", sum(row["id"] for row in rows), flush=True)
    for where in {row["host"] for row in rows}:
        print("prepared on", where, flush=True)
    pid = rows[0]["pid"]
    while len(list(folder.glob("*.status"))) < len(hosts) - 1:
        time.sleep(0.1)
    ray.shutdown()
    print("down", shell(args.down), flush=True)
    if args.down == "ray stop":  # and then another one, which it leaves behind
        while len(list(folder.glob("*.left"))) < len(hosts) - 1:
            time.sleep(0.1)
        assert shell("ray start --head --port=0") == 0
        (pid,) = pids_of("gcs_server")
    (folder / "pid").write_text(str(pid))
else:
    join = f"ray start --address={head}:{args.port} --resources='{{\\"preparation\\": 1}}'"
    while shell(join) != 0:
        pass
    print("status", shell("ray status"), flush=True)
    (folder / f"{env.current_host}.status").touch()
    try:  # as `ray status` over and over, which asks for 40 s
        while True:
            socket.create_connection((head, args.port)).close()
            time.sleep(0.1)
    except ConnectionRefusedError:
        print("left", flush=True)
        (folder / f"{env.current_host}.left").touch()
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A launch script and its code, which needs a package that is not installed."""
    python = make_environment(tmp_path / "environment")
    ray = python.with_name("ray")  # as pip installs it
    ray.write_text(f"#!{python}\nfrom ray.scripts.scripts import main\nmain()\n")
    ray.chmod(0o755)
    make_wheel(tmp_path / "code" / "wheels", "tinyhr", "1.0")
    (tmp_path / "code" / "requirements.txt").write_text("./wheels/tinyhr-1.0-py3-none-any.whl\n")
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "launch.py").write_text(LAUNCH)
    return tmp_path


def launch(
    job: Path, *, cpu_hosts: int, down: str, apart: list[str]
) -> subprocess.CompletedProcess[str]:
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]  # Ray's own, 6379, may be taken here
    bin_folder = job / "environment" / "bin"
    return subprocess.run(
        [*apart, bin_folder / "python", "launch.py", str(cpu_hosts), str(port), down],
        cwd=job,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=clean_environment(
            PATH=f"{bin_folder}:{os.environ['PATH']}",
            RAY_USAGE_STATS_ENABLED="0",
        ),
    )


def test_a_script_makes_a_ray_cluster_of_the_hosts_and_what_it_leaves_ends_with_them(
    job: Path,
) -> None:
    """Where a PID namespace can be made, it takes one down by `ray stop` and leaves another."""
    apart, down = [], "true"
    if missing("processes") is None:
        apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        apart += ["sh", "-c", '"$@"; exit $?', "sh"]  # which reaps Ray's daemons: `ray stop` waits
        down = "ray stop"
    ended = launch(job, cpu_hosts=1, down=down, apart=apart)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "[gpu/gpu-0] nodes ['127.0.0.2', '127.0.0.3']\n" in ended.stdout
    assert "[gpu/gpu-0] sum 56\n" in ended.stdout
    assert "[gpu/gpu-0] prepared on algo-2 1.0\n" in ended.stdout
    assert ended.stdout.count("prepared on") == 1
    assert "[gpu/gpu-0] down 0\n" in ended.stdout
    assert "[cpu/cpu-0] status 0\n" in ended.stdout
    assert "[cpu/cpu-0] left\n" in ended.stdout
    assert ended.stdout.splitlines()[-1] in {"afterwards gone", "afterwards Z"}
