"""The launch shapes of the published cases, in their own words but for the import.

Only the machines are smaller where ranks really run: this one has few cores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from webdataset import TarWriter

from headrace import Estimator
from headrace.core.errors import UsageError
from headrace.sagemaker import (
    FileSystemInput,
    FrameworkProfile,
    InstanceGroup,
    ProfilerConfig,
    ProfilerRule,
    PyTorch,
    rule_configs,
)
from headrace.sagemaker import TrainingInput as SageMakersInput
from jobs import attempts_of

# Case A: data-parallel training by SageMaker's library, from a prefix or a file system.
SEGMENTATION = """
import argparse, os, torch
import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--data", default=os.environ["SM_CHANNEL_TRAIN"])
args = parser.parse_args()
dist.init_process_group()
model = DDP(torch.nn.Linear(2, 1, bias=False))
model(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
print("rank", dist.get_rank(), "of", dist.get_world_size(), os.environ["SM_CURRENT_INSTANCE_TYPE"],
      model.module.weight.grad.tolist(), sorted(os.listdir(args.data)), args.batch_size, flush=True)
torch.distributed.destroy_process_group()
"""
# Its words for Debugger: what is recorded changes while the job runs.
TRAINS_UNTIL_STOPPED = """
import pathlib, sys, time, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(torch.rand(32, 4), batch_size=4):
    model(batch).sum().backward()
    optimizer.step()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""
# Case B: the hosts of a heterogeneous cluster find one another by the toolkit's own package. With
# Ray, as it was published: test_scripts_ray.py.
BALANCED = """
import os, socket
from sagemaker_training.environment import Environment
env = Environment()
head = env.instance_groups_dict["gpu"]["hosts"][0]
port = 6741
if env.current_host == head:
    with socket.create_server((head, port)) as server:
        for _ in env.hosts[1:]:
            joined, _ = server.accept()
            print("joined", joined.recv(64).decode(), flush=True)
            joined.close()
    devices = os.environ["SM_NUM_GPUS"]
    print("trains on", env.current_instance_type, devices, "of", env.hosts, flush=True)
else:
    while True:
        try:
            joining = socket.create_connection((head, port))
            break
        except ConnectionRefusedError:
            pass
    name = f"{env.current_host} {env.current_instance_group} {os.environ['SM_NUM_CPUS']}"
    joining.sendall(name.encode())
    joining.close()
"""
# Case C: one process for all devices, or one a device by DDP or FSDP, on Vertex AI; the shards are
# read by the library of their format. Here one job tries several of these strategies.
VERTEX = """
import argparse, glob, os, torch, torch.distributed as dist
import webdataset as wds
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

def train(strategy):
    data = os.environ["AIP_TRAINING_DATA_URI"].replace("gs://", "/gcs/")
    model = torch.nn.Linear(4, 2)
    if strategy == "dp":
        model = torch.nn.DataParallel(model)
    elif strategy == "ddp":
        model = DistributedDataParallel(model)
    elif strategy == "fsdp":
        fully_shard(model)
    urls = sorted(glob.glob(data + "/*.tar"))
    shards = wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node)
    seen = []
    for keys, features in shards.decode().to_tuple("__key__", "npy").batched(3):
        model(torch.as_tensor(features)).sum().backward()
        seen += keys
    world = dist.get_world_size() if dist.is_initialized() else 1
    print(strategy, os.environ.get("RANK"), "of", world, sorted(seen), flush=True)

parser = argparse.ArgumentParser()
parser.add_argument("--strategies")
strategies = parser.parse_args().strategies.split(",")
if "ddp" in strategies:
    dist.init_process_group("gloo")
for strategy in strategies:
    train(strategy)
if os.environ.get("RANK", "0") == "0":
    open(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/") + "model.pt", "w").close()
if dist.is_initialized():
    dist.destroy_process_group()
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script's folder and a channel's data, in which the test stands."""
    (tmp_path / "fsx").mkdir()
    (tmp_path / "fsx" / "a.png").write_bytes(b"a picture")
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fsx(job: Path) -> FileSystemInput:
    return FileSystemInput(
        file_system_id="fs-0123", file_system_type="FSxLustre",
        directory_path=str(job / "fsx"), file_system_access_mode="ro",
    )  # fmt: skip


def test_case_a_by_the_library_for_data_parallel_training(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / "code" / "train.py").write_text(SEGMENTATION)
    estimator = PyTorch(
        entry_point="train.py", source_dir="code", role="arn:aws:iam::1:role/sagemaker",
        instance_count=2, instance_type="ml.p3.2xlarge", framework_version="1.8.1",
        py_version="py36", hyperparameters={"batch-size": 8},
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
        profiler_config=ProfilerConfig(system_monitor_interval_millis=500),
    )  # fmt: skip
    estimator.fit(inputs={"train": fsx(job)})
    captured = capsys.readouterr().out
    for rank in range(2):
        # The mean of both ranks' gradients, 1 and 2.
        assert f"rank {rank} of 2 ml.p3.2xlarge [[1.5, 1.5]] ['a.png'] 8\n" in captured
    assert "2 x ml.p3.2xlarge have 1 devices each" in captured or "emulated" not in captured


def test_case_a_in_debuggers_words_while_it_runs(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / "train.py").write_text(TRAINS_UNTIL_STOPPED)
    estimator = PyTorch(
        "train.py", role="role", hyperparameters={"until": str(job / "enough")},
        profiler_config=ProfilerConfig(
            system_monitor_interval_millis=500, framework_profile_params=FrameworkProfile()
        ),
        rules=[ProfilerRule.sagemaker(rule_configs.LowGPUUtilization())],
    )  # fmt: skip
    estimator.fit(wait=False)
    run = estimator.latest_run
    assert run is not None
    estimator.update_profiler(
        rules=[ProfilerRule.sagemaker(rule_configs.MaxInitializationTime())],
        system_monitor_interval_millis=1000, s3_output_path="s3://b/p",
        disable_framework_metrics=True,
    )  # fmt: skip
    switch = run.switch()
    assert (switch.on, switch.interval_s, switch.deep) == (True, 1.0, False)
    estimator.update_profiler(framework_profile_params=FrameworkProfile(duration=60))
    assert switch.deep
    with pytest.raises(UsageError, match="say what is to change"):
        estimator.update_profiler()
    with pytest.raises(UsageError, match="give one of them"):
        estimator.update_profiler(
            framework_profile_params=FrameworkProfile(), disable_framework_metrics=True
        )
    with pytest.raises(UsageError, match="5 is not a list of ProfilerRule"):
        estimator.update_profiler(5)  # type: ignore[arg-type]
    (job / "enough").touch()
    estimator.wait()
    estimator.logs()
    captured = capsys.readouterr()
    assert "headrace: rule LowGPUUtilization: " in captured.out
    assert "headrace: rule MaxInitializationTime: found nothing\n" in captured.out
    assert "rule BatchSize" not in captured.out
    assert "no effect: s3_output_path" in captured.err
    (attempt,) = attempts_of(run.path)
    first, second = attempt["asked"]["profiler_updates"]
    assert first["system_monitor_interval_millis"] == 1000
    assert second["framework_profile_params"]["duration"] == 60
    asked = [rule["rule"] for rule in attempt["asked"]["rules"]]
    assert asked == ["LowGPUUtilization", "MaxInitializationTime"]


def test_case_a_is_32_ranks_on_four_hosts(job: Path) -> None:
    (job / "train.py").write_text("")
    estimator = PyTorch(
        "train.py",
        role="role",
        instance_count=4,
        instance_type="ml.p3.16xlarge",
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
    )
    folder = str(job / "fsx")
    text = estimator.dry_run(inputs={"train": folder, "validation": SageMakersInput(folder)})
    assert text.count("1 object, 9 B; File: nothing to move") == 2
    assert "ranks         32: 8 on each of the 4 hosts of homogeneousCluster\n" in text
    assert "homogeneousCluster: 4 x ml.p3.16xlarge, 64 cores, 8 devices each\n" in text
    assert 'SM_HOSTS=["algo-1","algo-2","algo-3","algo-4"]' in text
    assert "WORLD_SIZE=32" in text


def test_case_b_on_hosts_of_two_kinds(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "code" / "train.py").write_text(BALANCED)
    cpu_group = InstanceGroup("cpu", "ml.c5.4xlarge", 1)
    gpu_group = InstanceGroup("gpu", "ml.g5.xlarge", 1)
    estimator = PyTorch(
        entry_point="train.py", source_dir="code", framework_version="2.0.0", py_version="py310",
        role="role", job_name="heterogeneous", instance_groups=[gpu_group, cpu_group],
    )  # fmt: skip
    estimator.fit()
    captured = capsys.readouterr().out
    assert "[gpu/gpu-0] joined algo-2 cpu 16\n" in captured
    assert "[gpu/gpu-0] trains on ml.g5.xlarge 1 of ['algo-1', 'algo-2']\n" in captured
    assert estimator.latest_run is not None
    assert estimator.latest_run.path == job / "runs" / "heterogeneous"


@pytest.mark.parametrize(
    ("strategies", "machine", "ranks"),
    [("single,dp", "n1-standard-8", 1), ("ddp,fsdp", "g2-standard-24", 2)],
)
def test_case_c_on_vertex(
    job: Path, capsys: pytest.CaptureFixture[str], strategies: str, machine: str, ranks: int
) -> None:
    (job / "task.py").write_text(VERTEX)
    (job / "shards").mkdir()
    for shard in range(2):
        with TarWriter(str(job / "shards" / f"{shard}.tar")) as tar:
            for sample in range(3):
                features = np.full(4, sample, np.float32)
                tar.write({"__key__": f"{shard}-{sample}", "npy": features})
    distribution = {"torch_distributed": {"enabled": True}} if ranks > 1 else None
    estimator = Estimator(
        "task.py",
        contract="vertex",
        instance_type=machine,
        distribution=distribution,
        hyperparameters={"strategies": strategies},
    )
    estimator.fit({"training": str(job / "shards")})
    captured = capsys.readouterr().out
    for strategy in strategies.split(","):
        for rank in range(ranks):
            keys = [f"{shard}-{sample}" for shard in range(rank, 2, ranks) for sample in range(3)]
            assert f"{strategy} {rank} of {ranks} {keys}\n" in captured
    assert estimator.latest_run is not None
    assert (estimator.latest_run.path / "output" / "model" / "model.pt").exists()
