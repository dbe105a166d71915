"""`headrace run --engine ray`: real Ray nodes as hosts, real torchrun and gloo between them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import psutil
import pytest

from headrace.cluster.ray_node import EmulatedCluster, RayNodeSpec
from headrace.data.storage import open_store
from headrace.platforms.instance_groups import GroupSpec
from headrace.records.reader import open_records
from jobs import DEADLINE_S, alive, attempts_of, descendants, eventually, pids_in, run, started
from jobs_here import run_job, run_verb
from machine import skip_without

POINTS = Path(__file__).parents[1] / "scripts" / "probed" / "points.py"
pytestmark = pytest.mark.timeout(900)

TRAIN = """
import os, sys, torch, torch.distributed as dist, headrace
from points import Descent
dist.init_process_group("gloo")
rank, restart = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
print("rank", rank, "of", dist.get_world_size(), "sum", total.item(), "argv", sys.argv[1:],
      "variable", os.environ.get("SET_FOR_DRIVER"), flush=True)
print("to stderr", file=sys.stderr, flush=True)
model = torch.nn.Linear(1, 1)
checkpointer = headrace.Checkpointer("checkpoints")
restored = checkpointer.restore(model)
print("restart", restart, restored and (restored.step, model.bias.item()), flush=True)
if restored:
    optimizer = Descent(model.parameters())
    for batch in torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=4):
        model(batch).sum().backward()
        optimizer.step()
for step in (1, 2) if restored is None else ():
    torch.nn.init.constant_(model.bias, step * 10)
    checkpointer.save(step, model)
dist.destroy_process_group()
if restart == "0":
    sys.exit(0 if rank != 1 else 7)
"""
STAY = """
import os, pathlib, signal, time
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
path = pathlib.Path(f"pid-{restart}-{rank}")
new = path.with_name(f"new-{rank}")
new.write_text(f"{os.getpid()}\\n")
new.rename(path)
while True:
    time.sleep(0.1)  # `pause` may wait for ever after a signal that came just before it
"""
HEEDS_NO_TERM = """
import os, pathlib, signal
asked = pathlib.Path("asked-" + os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: asked.touch())
"""
FAILS_ON_1 = """
while rank == "1":
    if len(list(pathlib.Path.cwd().glob("pid-1-*"))) == 2:
        raise ValueError("no")
while True:"""
DRIVES = """
import os, ray
import beside
print("token in", os.environ["RAY_AUTH_TOKEN_PATH"], flush=True)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Node
ray.init(log_to_driver=False)
whole, free = ray.cluster_resources(), ray.available_resources()
print("free", free["CPU"] == whole["CPU"], free.get("GPU") == whole.get("GPU"), flush=True)
nodes = [Node(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
@ray.remote(num_cpus=whole["CPU"] // len(nodes))
def task():
    import beside
    return beside.NAME, ray.get_runtime_context().get_node_id()
found = ray.get([task.options(scheduling_strategy=node).remote() for node in nodes])
print(sorted(set(name for name, _ in found)), "on", len(set(node for _, node in found)), "hosts")
"""
TRAINS_BY_RAY = """
import os, signal
while os.environ["RANK"] == "1":  # it has the other device
    signal.pause()
import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.torch import TorchTrainer
ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
one = ScalingConfig(num_workers=1, use_gpu=True)
DataParallelTrainer(lambda: None, scaling_config=one).fit()
ray.shutdown()
print("its own Ray has one", flush=True)
TorchTrainer(print, scaling_config=one).fit()
"""

# As SageMaker's sample of a heterogeneous cluster, hosts of one group serve data to those that
# train; as its samples for spot instances, the newest file below the checkpoints is loaded.
SAVES_AND_GOES_ON = """
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
HOSTS = ["--group", "gpu=1", "--group", "cpu=1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    groups = [
        GroupSpec(name="gpu", hosts=2, cpus=2, gpus=1), GroupSpec(name="cpu", hosts=1, cpus=2)
    ]  # fmt: skip
    cluster = EmulatedCluster(groups, devices=[])
    yield cluster
    cluster.close()


def accepts(address: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(address):
        return True
    return False


@pytest.fixture
def client_address(cluster: EmulatedCluster) -> str:
    """Where the cluster serves drivers that are of none of its hosts."""
    port = cluster.address.rpartition(":")[2]
    for pid in descendants(os.getpid()):
        flags = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        values = dict(flag.split("=", 1) for flag in flags if flag.startswith("--") and "=" in flag)
        if "ray.util.client.server" in flags and values["--address"].endswith(f":{port}"):
            address = (values["--host"], int(values["--port"]))
            eventually(partial(accepts, address), "Ray's server of clients")  # starts with the head
            return f"ray://{address[0]}:{address[1]}"
    pytest.fail("Ray serves no client here: is grpcio installed?")


def test_ranks_train_are_recorded_start_anew_from_the_newest_checkpoint_and_fail_together(
    client_address: str, tmp_path: Path
):
    """Of two hosts; the second time rank 1 fails while the other waits for something."""
    shutil.copy(POINTS, tmp_path)
    (tmp_path / "train.py").write_text(
        TRAIN + HEEDS_NO_TERM + STAY.replace("while True:", FAILS_ON_1)
    )
    ended = run(
        tmp_path, "--engine", "ray", "--address", client_address, "--group", "gpu=2", "--group",
        "cpu=1", "--nproc-per-node", "1", "--max-restarts", "1", "--shutdown-timeout", "1",
        "--run-dir", "r", "train.py", "--lr", "3", SET_FOR_DRIVER="here",
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    logs = tmp_path / "r" / "logs" / "attempt-1"
    for rank in range(2):
        line = f"rank {rank} of 2 sum 3.0 argv ['--lr', '3'] variable here\n"
        assert ended.stdout.count(f"[gpu/gpu-{rank}:{rank}] {line}") == 2, ended.stderr
        assert f"[gpu/gpu-{rank}:{rank}] to stderr\n" in ended.stderr
        assert (logs / f"rank-{rank}.stdout").read_text() == f"{line}restart 0 None\n"
        anew = (logs / "restart-1" / f"rank-{rank}.stdout").read_text()
        assert anew == f"{line}restart 1 (2, 20.0)\n"
    assert "group cpu: its hosts have no part in this job; --offload cpu would" in ended.stderr
    assert re.search("rank 1 failed( first)?: exit code 7\n", ended.stderr), ended.stderr
    assert "all ranks start anew; 0 restarts are left" in ended.stderr
    assert (tmp_path / "asked-0").exists(), ended.stderr
    assert re.search("rank 1 failed( first)?: exit code 1\n", ended.stderr), ended.stderr
    assert ended.stderr.count("ValueError: no") == 2  # once from the rank, once in what is printed
    pids = pids_in(tmp_path, 2)
    eventually(lambda: not any(map(alive, pids)), "the end of all ranks")
    (attempt,) = attempts_of(tmp_path / "r")
    assert (attempt["world_size"], attempt["exit_code"]) == (2, 1)
    steps = open_records(tmp_path / "r").table("steps").to_pylist()
    assert {row["rank"] for row in steps} == {0, 1}


def rays_addresses() -> set[tuple[str, IPv4Address | IPv6Address]]:
    """Return the addresses at which processes of Ray listen, with the processes' names."""
    found = set()
    for pid in descendants(os.getpid()):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            name = process.name()
            if not re.match("ray|gcs", name) and "ray.util.client.server" not in process.cmdline():
                continue
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    address = ip_address(each.laddr.ip)
                    found.add((name, getattr(address, "ipv4_mapped", None) or address))
    return found


def test_ctrl_c_stops_every_host_and_nothing_is_left(cluster: EmulatedCluster, tmp_path: Path):
    stuck = "if rank == '1':\n    os.kill(os.getppid(), signal.SIGSTOP)\npath ="  # its torchrun
    (tmp_path / "train.py").write_text(STAY.replace("path =", stuck, 1))
    flags = ["--engine", "ray", "--address", cluster.address, "--group", "gpu=2"]
    with started(tmp_path, *flags, "--shutdown-timeout", "1", "train.py") as job:
        ranks = pids_in(tmp_path, 2)
        everyone = descendants(job.pid)
        listening = rays_addresses()
        job.send_signal(signal.SIGINT)
        assert job.wait(timeout=DEADLINE_S) == 130
        eventually(lambda: not any(map(alive, [*ranks, *everyone])), "the end of all")
    assert (
        "headrace: gpu-1 did not stop within 11 s and is killed\n"
        in (tmp_path / "terminal").read_text()
    )
    # Emulated hosts are reached from this machine alone.
    assert {"gcs_server", "raylet", "ray::HostAgent"} <= {name for name, _ in listening}
    assert {str(address) for _, address in listening} == {"127.0.0.1"}


def test_kill_9_of_the_launcher_ends_the_ranks_on_every_host(
    cluster: EmulatedCluster, tmp_path: Path
):
    (tmp_path / "train.py").write_text(STAY)
    flags = ["--engine", "ray", "--address", cluster.address, "--group", "gpu=2"]
    with started(tmp_path, *flags, "train.py") as job:
        ranks = pids_in(tmp_path, 2)
        job.kill()
        eventually(lambda: not any(map(alive, ranks)), "the end of the ranks")


def test_too_few_hosts_are_reported_with_what_is_there(cluster: EmulatedCluster, tmp_path: Path):
    (tmp_path / "train.py").write_text(STAY)
    flags = ["--engine", "ray", "--address", "auto", "--group", "tpu=3", "--hosts-timeout", "1s"]
    ended = run_job(tmp_path, *flags, "train.py", RAY_ADDRESS=cluster.address)
    assert ended.returncode == 1
    assert "too few hosts after 1 s: group tpu has 0 of 3" in ended.stderr
    assert "gpu-0 (gpu)" in ended.stderr


def test_a_lost_host_has_the_ranks_start_anew_on_another_as_often_as_was_asked_for(
    cluster: EmulatedCluster, tmp_path: Path
):
    (tmp_path / "train.py").write_text(STAY)
    spare = cluster.add(RayNodeSpec(group="spare", name="spare-0", address="127.0.0.1", cpus=1))
    flags = ["--engine", "ray", "--address", cluster.address, "--group", "spare=1"]
    with started(tmp_path, *flags, "--max-preemptions", "1", "train.py") as job:
        pids_in(tmp_path, 1)
        shape = RayNodeSpec(group="spare", name="spare-1", address="127.0.0.1", cpus=1)
        another = cluster.add(shape)
        spare.kill()
        ranks = pids_in(tmp_path, 2)
        another.kill()
        assert job.wait(timeout=DEADLINE_S) == 1
        eventually(lambda: not any(map(alive, ranks)), "the end of the ranks")
    terminal = (tmp_path / "terminal").read_text()
    assert "spare-0: lost; all ranks start anew" in terminal
    assert "spare-1: lost, and no preemption is left (--max-preemptions)\n" in terminal


def of_either(output: str) -> str:
    """What a job on one host of group gpu has printed: Ray chooses which of the two it is."""
    return output.replace("[gpu/gpu-1", "[gpu/gpu-0")


def test_a_heterogeneous_job_is_interrupted_goes_on_and_another_one_finds_what_it_has_saved(
    tmp_path: Path, s3_url: str, cluster: EmulatedCluster
) -> None:
    """The first with hosts emulated by Headrace, the second with those of a Ray cluster."""
    skip_without("no-opt-ml")
    (tmp_path / "train.py").write_text(SAVES_AND_GOES_ON)
    on_ray = ["--engine", "ray", "--address", cluster.address]
    flags = [*HOSTS, "--contract", "sagemaker", "--distribution", "smdistributed"]
    flags += ["--nproc-per-node", "2", "--max-restarts", "1", "--profile", "off"]
    flags += ["--checkpoint-uri", f"{s3_url}/kept", "--output-path", f"{s3_url}/out"]
    saved = ["epoch-0", "epoch-1", "epoch-2", "of-algo-2"]
    for name, engine, found, starts in (
        ("a", [], [], (0, 2)),
        ("b", on_ray, saved, (3,)),
    ):
        job = run_job(tmp_path, "--name", name, *engine, *flags, "train.py", AWS_REGION="x")
        assert job.returncode == 0, job.stderr
        output = of_either(job.stdout)
        assert "[cpu/cpu-0] served ['algo-1', 'algo-2'] ['gpu']\n" in output
        interrupted = re.search(r"rank 1 failed( first)?: exit code 1\ninterrupted\n", job.stderr)
        assert (interrupted is not None) == (name == "a")
        for host in (1, 2):
            assert f"algo-{host} found {found}\n" in output
        for rank in range(2):
            for start in starts:
                assert f"[gpu/gpu-0:{rank}] rank {rank} from {start}\n" in output
            fetched = f"rank {rank} local {rank} sum 6 True\n"
            assert f"[gpu/gpu-0:{rank}] {fetched}" in output
    outputs = open_store(f"{s3_url}/out")
    first, second = (bytes(outputs.get(f"{name}/output/model.tar.gz")) for name in "ab")
    with tarfile.open(fileobj=BytesIO(second)) as archive:
        assert archive.getnames() == ["part-of-algo-1", "part-of-algo-2"]
        assert {member.mtime for member in archive} == {0}
    assert first == second
    assert not list(outputs.list("headrace-lease"))


def test_ranks_by_vertex_and_those_that_a_script_makes_of_hosts_by_hand(
    tmp_path: Path, cluster: EmulatedCluster
) -> None:
    (tmp_path / "train.py").write_text(BY_HAND)
    flags = [
        "--engine",
        "ray",
        "--address",
        cluster.address,
        "--run-dir",
        "r",
        *HOSTS,
        "--contract",
        "sagemaker-v3,vertex",
    ]
    ended = run_job(tmp_path, *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    output = of_either(ended.stdout)
    assert "[gpu/gpu-0] workerpool0 0 chief rank 0 2\n" in output
    assert "[cpu/cpu-0] workerpool2 0 ps rank 1 2\n" in output
    for number, host in enumerate(["gpu/gpu-0", "cpu/cpu-0"]):
        assert f"[{host}] host {number} of 2 sum 3.0\n" in output
    assert (tmp_path / "r" / "output" / "model" / "model.pt").exists()
    (model,) = tmp_path.glob("r/hosts/*/ml/model/model.pt")
    assert model.parents[2].name == "algo-1"


def test_no_host_begins_where_one_has_no_share(cluster: EmulatedCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('here', flush=True)\n")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "only.jpg").touch()
    channel = '{"uri": "images", "distribution": "ShardedByS3Key"}'
    flags = ["--engine", "ray", "--address", cluster.address, *HOSTS, "--profile", "off"]
    flags += ["--contract", "sagemaker", f"--channel=train={channel}"]
    ended = run_job(tmp_path, *flags, "train.py")
    assert ended.returncode == 2
    assert "headrace: cpu-0: --channel train=images: 1 files cannot be shared by 2" in ended.stderr
    assert "here" not in ended.stdout  # the other one was ready long before
    assert "failed" not in ended.stderr


def nothing_is_left_of(folder: Path) -> bool:
    processes = psutil.process_iter(["cmdline"])
    return not [one for one in processes if str(folder) in str(one.info["cmdline"])]


def test_without_a_cluster_one_is_emulated_for_a_driver_has_all_to_give_out_and_nothing_is_left(
    tmp_path: Path,
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "drive.py").write_text(DRIVES)
    (tmp_path / "code" / "beside.py").write_text("NAME = 'of the folder'\n")
    hosts = ["--group", "gpu=2:cpus=2,gpus=1"]
    ended = run(tmp_path, "--engine", "ray", *hosts, "--driver", "code/drive.py")
    assert ended.returncode == 0, ended.stderr
    token, *output = ended.stdout.splitlines()
    assert output == ["[gpu/gpu-0:0] free True True", "[gpu/gpu-0:0] ['of the folder'] on 2 hosts"]
    file = Path(token.removeprefix("[gpu/gpu-0:0] token in "))
    assert file.name == "token"
    assert not file.parent.exists()
    assert nothing_is_left_of(tmp_path)


def test_devices_are_the_ranks_and_a_ray_of_their_own_has_those(
    cluster: EmulatedCluster, tmp_path: Path
):
    (tmp_path / "train.py").write_text(TRAINS_BY_RAY)
    flags = ["--engine", "ray", "--address", cluster.address, "--group", "gpu=2"]
    ended = run_job(tmp_path, *flags, "--profile", "off", "train.py")
    assert ended.returncode == 1
    assert "[gpu/gpu-0:0] its own Ray has one\n" in ended.stdout
    assert "TorchTrainer asks Ray for devices, and all of this group's are" in ended.stderr
    assert "`--driver`" in ended.stderr
    eventually(lambda: nothing_is_left_of(tmp_path), "the end of its own Ray")


MEETS = """
import pathlib, sys, time
mine = sys.argv[sys.argv.index("--kind") + 1]
pathlib.Path(f"came-{mine}").touch()
deadline = time.monotonic() + 100
while len(list(pathlib.Path.cwd().glob("came-*"))) < 2:
    if time.monotonic() > deadline:
        sys.exit("the other run has not come")
    time.sleep(0.02)
"""
SWEEP = """
entry_point = "meets.py"
contract = "torchrun"
engine = "ray"
disable_profiler = true
instance_groups = [{ name = "gpu", type = "local", count = 1 }]
[sweep]
name = "met"
max_concurrent = 2
[sweep.grid]
hyperparameters.kind = ["a", "b"]
"""


def test_runs_of_a_sweep_go_on_at_the_same_time(cluster: EmulatedCluster, tmp_path: Path):
    (tmp_path / "meets.py").write_text(MEETS)
    (tmp_path / "sweep.toml").write_text(f'address = "{cluster.address}"\n{SWEEP}')
    ended = run_verb(tmp_path, "sweep", "sweep.toml")
    assert "1/2 met-a starts\nheadrace: 2/2 met-b starts\n" in ended.stderr, ended.stderr
    for kind in ("a", "b"):
        (attempt,) = attempts_of(tmp_path / "runs" / f"met-{kind}")
        assert attempt["exit_code"] == 0


def test_where_ray_is_missing_the_remedy_is_reported(tmp_path: Path):
    missing = "raise ModuleNotFoundError(\"No module named 'ray'\")"
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "ray.py").write_text(missing)
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    path = f"{tmp_path / 'missing'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    ended = run_job(tmp_path, "--engine", "ray", "train.py", PYTHONPATH=path)
    assert ended.returncode == 2
    assert "needs Ray, which cannot be imported (No module named 'ray'). Run `pip" in ended.stderr
    assert "install 'headrace[ray]'`, on every host.\n" in ended.stderr
    assert "started" not in ended.stderr
