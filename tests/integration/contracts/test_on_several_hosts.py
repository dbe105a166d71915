"""Scripts for SageMaker and Vertex AI, unmodified, on the hosts of several instance groups.

With both engines: hosts that Headrace emulates by itself, and those of a Ray cluster.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from headrace.cluster.ray_node import EmulatedCluster
from headrace.data.storage import open_store
from headrace.platforms.instance_groups import GroupSpec
from jobs_here import run_job, run_verb

# As SageMaker's sample of a heterogeneous cluster, hosts of one group serve data to those that
# train; as its samples for spot instances, the newest file below the checkpoints is loaded.
TRAIN = """
import json, pathlib, signal, socket, sys, time
from sagemaker_training.environment import Environment

env = Environment()
PORT = 6123
checkpoints = pathlib.Path("/opt/ml/checkpoints")

def serve(ranks):
    with socket.create_server((env.current_host, PORT)) as server:
        for _ in range(ranks):
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

def train():
    import os
    rank = int(os.environ["RANK"])
    done = sorted(checkpoints.glob("epoch-*"))
    start = int(done[-1].read_text()) + 1 if done else 0
    print("rank", rank, "from", start, flush=True)
    if start == 0:
        if rank == 0:
            while not pathlib.Path("looked").exists():
                time.sleep(0.01)
            for epoch in range(2):
                (checkpoints / "draft").write_text(str(epoch))
                (checkpoints / "draft").rename(checkpoints / f"epoch-{epoch}")
            signal.pause()
        pathlib.Path("looked").touch()
        while not (checkpoints / "epoch-1").exists():
            time.sleep(0.01)
        sys.exit("interrupted")
    data = fetch(env.instance_groups_dict["cpu"]["hosts"][0])
    print("rank", rank, "local", os.environ["LOCAL_RANK"], "sum", sum(data), env.is_hetero,
          flush=True)
    pathlib.Path(f"fetched-{start}-{rank}").touch()
    while len(list(pathlib.Path.cwd().glob(f"fetched-{start}-*"))) < 2:
        time.sleep(0.01)
    if rank == 0:
        (checkpoints / f"epoch-{start}").write_text(str(start))

found = sorted(path.name for path in checkpoints.iterdir() if path.name != "draft")
print(env.current_host, "found", found, flush=True)
if env.current_instance_group == "cpu":
    serve(2)
    (checkpoints / f"of-{env.current_host}").write_text("state")
    print("served", env.hosts, env.distribution_instance_groups, flush=True)
else:
    train()
(pathlib.Path(env.model_dir) / f"part-of-{env.current_host}").write_text("weights")
"""
# As scripts of before torch_distributed do: ranks made of hosts by hand. A custom job of Vertex AI
# has one process a machine, by RANK and WORLD_SIZE of machines: they are the same.
BY_HAND = """
import json, os
spec = json.loads(os.environ["CLUSTER_SPEC"])
pool, index = spec["task"]["type"], spec["task"]["index"]
config = json.loads(os.environ["TF_CONFIG"])
print(pool, index, config["task"]["type"], "rank", os.environ["RANK"], os.environ["WORLD_SIZE"],
      flush=True)
hosts, here = json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"]
os.environ["WORLD_SIZE"] = str(len(hosts))
os.environ["RANK"] = str(hosts.index(here))
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("host", hosts.index(here), "of", len(hosts), "sum", total.item(), flush=True)
if dist.get_rank() == 0:
    for folder in (os.environ["SM_MODEL_DIR"], os.environ["AIP_MODEL_DIR"]):
        torch.save(total, os.path.join(folder.replace("gs://", "/gcs/"), "model.pt"))
dist.barrier()
dist.destroy_process_group()
"""
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


@pytest.fixture(scope="module")
def ray() -> Iterator[list[str]]:
    """The flags by which a job runs on a Ray cluster of emulated hosts."""
    groups = [GroupSpec(name=name, hosts=1, cpus=2) for name in ("gpu", "cpu")]
    cluster = EmulatedCluster(groups, devices=[])
    yield ["--engine", "ray", "--address", cluster.address]
    cluster.close()


def test_a_heterogeneous_job_is_interrupted_goes_on_and_another_one_finds_what_it_has_saved(
    tmp_path: Path, s3_url: str, ray: list[str]
) -> None:
    """The first with hosts emulated by Headrace, the second with those of a Ray cluster."""
    if Path("/opt/ml").exists():
        pytest.skip("this machine has an /opt/ml")
    (tmp_path / "train.py").write_text(TRAIN)
    flags = [*HOSTS, "--contract", "sagemaker", "--distribution", "smdistributed"]
    flags += ["--nproc-per-node", "2", "--max-restarts", "1", "--profile", "off"]
    flags += ["--checkpoint-uri", f"{s3_url}/kept", "--output-path", f"{s3_url}/out"]
    saved = ["epoch-0", "epoch-1", "epoch-2", "of-algo-2"]
    for name, engine, found, starts in (
        ("a", [], [], (0, 2)),
        ("b", ray, saved, (3,)),
    ):
        job = run_job(tmp_path, "--name", name, *engine, *flags, "train.py", AWS_REGION="x")
        assert job.returncode == 0, job.stderr
        assert "[cpu/cpu-0] served ['algo-1', 'algo-2'] ['gpu']\n" in job.stdout
        interrupted = re.search(r"rank 1 failed( first)?: exit code 1\ninterrupted\n", job.stderr)
        assert (interrupted is not None) == (name == "a")
        for host in (1, 2):
            assert f"algo-{host} found {found}\n" in job.stdout
        for rank in range(2):
            for start in starts:
                assert f"[gpu/gpu-0:{rank}] rank {rank} from {start}\n" in job.stdout
            fetched = f"rank {rank} local {rank} sum 6 True\n"
            assert f"[gpu/gpu-0:{rank}] {fetched}" in job.stdout
    outputs = open_store(f"{s3_url}/out")
    first, second = (bytes(outputs.get(f"{name}/output/model.tar.gz")) for name in "ab")
    with tarfile.open(fileobj=BytesIO(second)) as archive:
        assert archive.getnames() == ["part-of-algo-1", "part-of-algo-2"]
        assert {member.mtime for member in archive} == {0}
    assert first == second
    assert not list(outputs.list("headrace-lease"))


def test_ranks_by_vertex_and_those_that_a_script_makes_of_hosts_by_hand(
    tmp_path: Path, ray: list[str]
) -> None:
    (tmp_path / "train.py").write_text(BY_HAND)
    flags = [*ray, "--run-dir", "r", *HOSTS, "--contract", "sagemaker-v3,vertex"]
    ended = run_job(tmp_path, *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "[gpu/gpu-0] workerpool0 0 chief rank 0 2\n" in ended.stdout
    assert "[cpu/cpu-0] workerpool2 0 ps rank 1 2\n" in ended.stdout
    for number, host in enumerate(["gpu/gpu-0", "cpu/cpu-0"]):
        assert f"[{host}] host {number} of 2 sum 3.0\n" in ended.stdout
    assert (tmp_path / "r" / "output" / "model" / "model.pt").exists()
    (model,) = tmp_path.glob("r/hosts/*/ml/model/model.pt")
    assert model.parents[2].name == "algo-1"


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


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_no_host_begins_where_one_has_no_share(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "train.py").write_text("print('here', flush=True)\n")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "only.jpg").touch()
    channel = '{"uri": "images", "distribution": "ShardedByS3Key"}'
    flags = ["--engine", "local"] if engine == "local" else request.getfixturevalue("ray")
    flags = [*flags, *HOSTS, "--profile", "off", "--contract", "sagemaker"]
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
