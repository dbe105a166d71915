"""Within a job that SageMaker or Vertex AI has started: its hosts, ranks and folders are taken."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.contracts.host_group import HostGroup
from headrace.contracts.sagemaker_variables import sagemaker_v3_variables, sagemaker_variables
from headrace.contracts.training_job import Channel, Machine, TrainingJob
from headrace.contracts.vertex_variables import VertexPlaces, vertex_variables
from headrace.launch.sagemaker_tree import SageMakerTree
from jobs import clean_environment, headrace, run

MACHINE = Machine(cpus=2, interface="lo")
# Each host of these jobs is a process here; only its name has to lead somewhere.
GPU = HostGroup(name="gpu", hosts=("127.0.0.2", "127.0.0.3"), instance_type="ml.g5.xlarge")
CPU = HostGroup(name="cpu", hosts=("127.0.0.4",), instance_type="ml.c5.xlarge")
JOB = TrainingJob(
    name="outer",
    groups=(GPU, CPU),
    entry_point="train.py",
    distribution="torch_distributed",
    distributed=("gpu",),
    channels=(Channel(name="train"),),
    hyperparameters={"epochs": 2},
)
TRAIN = """
import os, sys
if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print("rank", dist.get_rank(), "sum", total.item(), flush=True)
    dist.destroy_process_group()
else:
    print("runs once", flush=True)
print(os.environ.get("SM_CURRENT_HOST"), os.environ.get("SM_MODEL_DIR"), sys.argv[1:], flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outer(host: str, folder: Path, *, sdk: int = 2) -> dict[str, str]:
    """What a container of SageMaker's has on a host."""
    tree = SageMakerTree(folder / host)
    tree.lay_out(JOB, host, MACHINE, code=folder, channels={"train": folder})
    told = sagemaker_variables if sdk == 2 else sagemaker_v3_variables
    return {**told(JOB, host, tree.folders, MACHINE), "SAGEMAKER_BASE_DIR": tree.folders.base}


def on_all_hosts(
    folder: Path, environments: Mapping[str, Mapping[str, str]], *flags: str
) -> dict[str, str]:
    """Run the script on every host at once, and return what each one printed."""
    (folder / "train.py").write_text(TRAIN)
    processes = {
        host: subprocess.Popen(
            headrace("run", "--run-dir", f"run-{host}", *flags, "train.py"),
            cwd=folder, env=clean_environment(**environment), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for host, environment in environments.items()
    }  # fmt: skip
    said = {}
    for host, process in processes.items():
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        said[host] = out
    return said


@pytest.mark.parametrize("sdk", [2, 3])
def test_ranks_on_a_jobs_hosts_meet_and_its_folders_are_used(tmp_path: Path, sdk: int) -> None:
    environments = {host: outer(host, tmp_path, sdk=sdk) for host in JOB.hosts}
    if sdk == 3:  # which tells of no groups but in a file
        environments.pop("127.0.0.4")
        for host, environment in environments.items():
            config = tmp_path / host / "input" / "config" / "resourceconfig.json"
            told = {"current_host": host, "hosts": list(GPU.hosts)}
            config.write_text(json.dumps({**told, "current_instance_type": "ml.g5.xlarge"}))
            for name, value in {"SM_HOSTS": json.dumps(GPU.hosts), "SM_HOST_COUNT": "2"}.items():
                environment[name] = value
            environment.pop("SM_RESOURCE_CONFIG")
    said = on_all_hosts(
        tmp_path, environments, "--contract", "sagemaker", "--distribution", "torch_distributed",
        "--hyperparameter", "lr=1", "--master-port", str(free_port()),
    )  # fmt: skip
    for rank, host in enumerate(GPU.hosts):
        model = tmp_path / host / "model"
        assert f"[rank {rank}] rank {rank} sum 2.0\n" in said[host]
        assert f"[rank {rank}] {host} {model} ['--lr', '1']\n" in said[host]
    if sdk == 2:
        assert said["127.0.0.4"].startswith("runs once\n127.0.0.4 ")


def test_pools_of_vertex_meet_by_the_machines_ranks(tmp_path: Path) -> None:
    places = VertexPlaces(output="/gcs/bucket", data={})
    job = TrainingJob(name="outer", groups=(GPU,), entry_point="train.py", distributed=("gpu",))
    environments = {host: vertex_variables(job, host, places) for host in job.hosts}
    port = str(free_port())
    said = on_all_hosts(
        tmp_path, environments, "--contract", "vertex", "--nproc-per-node", "2", "--master-port",
        port,
    )  # fmt: skip
    for host, ranks in zip(GPU.hosts, ([0, 1], [2, 3]), strict=True):
        for rank in ranks:
            assert f"[rank {rank}] rank {rank} sum 4.0\n" in said[host]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--channel=train=."], "of a job that has its channels already"),
        (["--checkpoint-local-path=/ck"], "of a job that has its checkpoints' folder already"),
        (["--group=gpu=3"], "of a job that has hosts already: 127.0.0.2, 127.0.0.3, 127.0.0.4"),
    ],
)
def test_flags_that_contradict_the_job_are_refused(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    environment = outer("127.0.0.2", tmp_path)
    ended = run(tmp_path, "--contract", "sagemaker", *flags, "train.py", **environment)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_a_variable_that_says_otherwise_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    said = "SM_MODEL_DIR is set to '/my/model' here, and the contract would tell"
    for flags in ([], ["--dry-run"], ["--group=gpu=2"]):
        ended = run(tmp_path, "--contract", "sagemaker", *flags, "train.py",
                    SM_MODEL_DIR="/my/model")  # fmt: skip
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count(said) == 1


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--group=gpu=2"]])
def test_a_variable_of_the_command_line_that_contradicts_the_contract_is_refused(
    tmp_path: Path, flags: list[str]
) -> None:
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    ended = run(tmp_path, "--contract", "sagemaker", "--environment", "SM_NUM_CPUS=999", *flags,
                "train.py")  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("--environment SM_NUM_CPUS=999: the contract says SM_NUM_CPUS") == 1


def test_a_dry_run_within_a_job_tells_of_that_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    told = run(tmp_path, "--dry-run", "--contract", "sagemaker", "--nproc-per-node=2", "train.py",
               **outer("127.0.0.3", tmp_path))  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "127.0.0.2, 127.0.0.3, 127.0.0.4" in told.stdout
    assert "127.0.0.3\nranks" in told.stdout.replace("ranks  ", "ranks")
