"""Scripts for SageMaker and Vertex AI, unmodified, on the hosts of several instance groups.

Each runs with both engines: hosts that Headrace emulates by itself, and those of a Ray cluster.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from headrace.cluster.emulated_cluster import EmulatedCluster
from headrace.platforms.instance_groups import GroupSpec
from jobs import headrace, run

Run = Callable[..., CompletedProcess[str]]

# SageMaker's sample of a heterogeneous cluster: hosts of one group serve data to those that train.
HETEROGENEOUS = """
import json, socket, sys
from sagemaker_training.environment import Environment

env = Environment()
PORT = 6123

def serve(trainers):
    with socket.create_server((env.current_host, PORT)) as server:
        for _ in range(trainers):
            connection, _ = server.accept()
            with connection:
                connection.sendall(json.dumps(list(range(4))).encode())

def fetch(host):
    while True:
        try:
            with socket.create_connection((host, PORT)) as connection:
                return json.loads(connection.makefile().read())
        except ConnectionRefusedError:
            pass

if env.current_instance_group == "cpu":
    serve(len(env.instance_groups_dict["gpu"]["hosts"]))
    print("served", env.hosts, env.distribution_instance_groups, flush=True)
else:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor(fetch(env.instance_groups_dict["cpu"]["hosts"][0])).sum()
    dist.all_reduce(total)
    print("rank", dist.get_rank(), "sum", total.item(), env.is_hetero, flush=True)
    dist.destroy_process_group()
"""
# As scripts of before torch_distributed do: ranks made of hosts by hand.
BY_HAND = """
import json, os
hosts, here = json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"]
os.environ["WORLD_SIZE"] = str(len(hosts))
os.environ["RANK"] = str(hosts.index(here))
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("host", hosts.index(here), "of", len(hosts), "sum", total.item(), flush=True)
if dist.get_rank() == 0:
    torch.save(total, os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
dist.destroy_process_group()
"""
# As SageMaker's samples for spot instances do: the newest file below the checkpoints is loaded.
SPOT = """
import os, pathlib, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
checkpoints = pathlib.Path("/opt/ml/checkpoints")
files = sorted(checkpoints.glob("epoch-*.pt"))
start = torch.load(files[-1]) + 1 if files else 0
print("rank", rank, "from", start, flush=True)
for epoch in range(start, 3):
    dist.barrier()
    draft = checkpoints / "draft"
    torch.save(epoch, draft)
    draft.rename(checkpoints / f"epoch-{epoch}.pt")
    if epoch == 1 and start == 0 and rank == 1:
        sys.exit("interrupted")
dist.destroy_process_group()
"""
# A custom job of Vertex AI: one process a machine, by RANK and WORLD_SIZE of machines.
VERTEX = """
import json, os, torch, torch.distributed as dist
spec = json.loads(os.environ["CLUSTER_SPEC"])
pool, index = spec["task"]["type"], spec["task"]["index"]
config = json.loads(os.environ["TF_CONFIG"])
dist.init_process_group("gloo", init_method="env://")
total = torch.ones(1)
dist.all_reduce(total)
print(pool, index, config["task"]["type"], "rank", dist.get_rank(), "sum", total.item(), flush=True)
if pool == "workerpool0":
    torch.save(total, os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/") + "model.pt")
dist.destroy_process_group()
"""
SMDDP = """
import os, torch
import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
dist.init_process_group()
model = DDP(torch.nn.Linear(2, 1, bias=False))
model(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
gradient = model.module.weight.grad.tolist()
print("rank", dist.get_rank(), "local", dist.get_local_rank(), gradient, flush=True)
torch.distributed.destroy_process_group()
"""
SCRIPT_MODE = """
import argparse, os, json
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
args = parser.parse_args()
print(os.environ["SM_CURRENT_HOST"], args.epochs, os.listdir(args.train), flush=True)
"""
GROUPS = ["--group", "gpu=2", "--group", "cpu=1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    groups = [GroupSpec(name="gpu", hosts=2, cpus=2), GroupSpec(name="cpu", hosts=1, cpus=2)]
    cluster = EmulatedCluster(groups, devices=[])
    yield cluster
    cluster.close()


@pytest.fixture(params=["local", "ray"])
def run_script(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a script, whose run's folder is `r`, with one of the engines."""
    engine = []
    if request.param == "ray":
        cluster = request.getfixturevalue("cluster")
        engine = ["--engine", "ray", "--address", cluster.address]

    def run_it(script: str, *flags: str) -> CompletedProcess[str]:
        (tmp_path / "train.py").write_text(script)
        ended = run(tmp_path, *engine, "--run-dir", "r", *flags, "train.py", AWS_REGION="x")
        assert ended.returncode == 0, ended.stderr
        return ended

    return run_it


def test_hosts_that_serve_data_to_those_that_train(run_script: Run) -> None:
    ended = run_script(
        HETEROGENEOUS, *GROUPS, "--contract", "sagemaker", "--distribution", "torch_distributed"
    )
    hosts = "['algo-1', 'algo-2', 'algo-3']"
    assert f"[cpu/cpu-0] served {hosts} ['gpu']\n" in ended.stdout
    for rank in range(2):
        assert f"[gpu/gpu-{rank}:{rank}] rank {rank} sum 12 True\n" in ended.stdout


def test_ranks_that_a_script_makes_of_hosts_by_hand(run_script: Run, tmp_path: Path) -> None:
    ended = run_script(BY_HAND, *GROUPS, "--contract", "sagemaker")
    for number, host in enumerate(["gpu-0", "gpu-1", "cpu-0"]):
        group = host.partition("-")[0]
        assert f"[{group}/{host}] host {number} of 3 sum 6.0\n" in ended.stdout
    assert [path.parents[2].name for path in tmp_path.glob("r/hosts/*/ml/model/model.pt")] == [
        "algo-1"
    ]


def test_an_interrupted_job_goes_on_from_its_newest_checkpoint(run_script: Run) -> None:
    ended = run_script(
        SPOT, "--group", "gpu=2", "--contract", "sagemaker", "--distribution", "torch_distributed",
        "--max-restarts", "1",
    )  # fmt: skip
    for rank in range(2):
        assert f"rank {rank} from 0\n" in ended.stdout
        assert f"rank {rank} from 2\n" in ended.stdout
    assert "rank 1 failed: exit code 1\ninterrupted\n" in ended.stderr


def test_a_custom_job_of_vertex(run_script: Run, tmp_path: Path) -> None:
    ended = run_script(VERTEX, *GROUPS, "--contract", "vertex")
    assert "[gpu/gpu-0] workerpool0 0 chief rank 0 sum 3.0\n" in ended.stdout
    assert "[gpu/gpu-1] workerpool1 0 worker rank 1 sum 3.0\n" in ended.stdout
    assert "[cpu/cpu-0] workerpool2 0 ps rank 2 sum 3.0\n" in ended.stdout
    assert (tmp_path / "r" / "output" / "model" / "model.pt").exists()


def test_sagemakers_library_for_data_parallel_training(run_script: Run) -> None:
    ended = run_script(
        SMDDP, "--group", "gpu=2", "--contract", "sagemaker", "--distribution", "smdistributed",
        "--nproc-per-node", "2",
    )  # fmt: skip
    for rank in range(4):
        assert f"rank {rank} local {rank % 2} [[2.5, 2.5]]\n" in ended.stdout


def test_a_script_mode_script_on_each_host(run_script: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").touch()
    ended = run_script(
        SCRIPT_MODE, *GROUPS, "--contract", "sagemaker-v3", "--channel", "train=data",
        "--hyperparameter", "epochs=2",
    )  # fmt: skip
    for number in (1, 2, 3):
        assert f"algo-{number} 2 ['a.txt']\n" in ended.stdout
    notes = list(tmp_path.glob("r/hosts/*/ml/output/success"))
    assert len(notes) == 3


def test_what_a_script_would_be_told_is_what_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "print('TOLD', json.dumps([dict(os.environ), sys.argv[1:]]), flush=True)\n"
    )
    flags = [*GROUPS, "--contract=sagemaker", "--contract=vertex", "--hyperparameter=batch-size=8"]
    ended = run(tmp_path, "--name", "job", *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    for number, host in enumerate(["gpu/gpu-0", "gpu/gpu-1", "cpu/cpu-0"]):
        (line,) = [line for line in ended.stdout.splitlines() if line.startswith(f"[{host}] TOLD")]
        environment, arguments = json.loads(line.partition("TOLD ")[2])
        shown = subprocess.run(
            headrace("cluster", "env", *flags, f"--host=algo-{number + 1}", "--json"),
            capture_output=True, check=True,
        )  # fmt: skip
        told = json.loads(shown.stdout)
        assert told["arguments"] == arguments
        assert len(told["variables"]) > 50
        # Of the run's own folder, and of a port that may be taken.
        places = ("AIP_", "SM_MODULE_DIR", "SM_TRAINING_ENV", "SM_MASTER_PORT", "MASTER_PORT")
        for name, value in told["variables"].items():
            if not name.startswith(places):
                assert environment[name] == value, name


def test_a_host_that_fails_is_told_and_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n"
        "    raise ValueError('no data here')\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    ended = run(tmp_path, "--run-dir", "r", *GROUPS, "--contract", "sagemaker", "train.py")
    assert ended.returncode == 1
    assert "headrace: gpu-1 failed: exit code 1\n" in ended.stderr
    assert ended.stderr.count("ValueError: no data here") == 2  # from the host, and as it is told
    failure = tmp_path / "r" / "hosts" / "algo-2" / "ml" / "output" / "failure"
    assert "no data here" in failure.read_text()
    attempts = json.loads((tmp_path / "r" / "run.json").read_text())["attempts"]
    assert attempts[0]["exit_code"] == 1


def test_ranks_of_emulated_hosts_meet_without_ray_and_without_a_contract(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "print('sum', total.item(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    ended = run(tmp_path, "--group", "gpu=2", "--nproc-per-node", "2", "train.py")
    assert ended.returncode == 0, ended.stderr
    for rank in range(4):
        assert f"[gpu/gpu-{rank // 2}:{rank}] sum 4.0\n" in ended.stdout
