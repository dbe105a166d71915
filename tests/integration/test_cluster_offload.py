"""`headrace run --offload`: auxiliary hosts of a cluster that come and go, used where they help."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cluster.ray_node import EmulatedCluster, RayNodeSpec
from headrace.platforms.instance_groups import GroupSpec
from jobs import DEADLINE_S, attempts_of, clean_environment, eventually, run_here, started
from jobs_here import run_job

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = pytest.mark.timeout(900)
ANOTHER_JOB = """
import ray, sys
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
@ray.remote(num_cpus=1)
class Job:
    def is_there(self):
        return True
ray.init(log_to_driver=False)
(node,) = (node["NodeID"] for node in ray.nodes() if node["NodeName"] == sys.argv[1])
job = Job.options(scheduling_strategy=On(node, False)).remote()
print(ray.get(job.is_there.remote()), flush=True)
sys.stdin.read()
"""


BUSY = """
import os, sys, time, torch
from points import Descent
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros(80000, 8)), batch_size=4, num_workers=1)
model = torch.nn.Linear(8, 1)
optimizer = Descent(model.parameters())
for (samples,) in loader:
    model(samples).sum().backward()
    optimizer.step()
    time.sleep(0.02)  # the device is at work
    if os.path.exists(sys.argv[1]):
        break
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    groups = [GroupSpec(name="gpu", hosts=1, cpus=1), GroupSpec(name="cpu", hosts=1, cpus=3)]
    cluster = EmulatedCluster(groups, devices=[])
    yield cluster
    cluster.close()


def flags(cluster: EmulatedCluster) -> list[str]:
    return ["--engine", "ray", "--address", cluster.address, "--group", "gpu=1", "--offload", "cpu"]


def auto(cluster: EmulatedCluster) -> list[str]:
    """Return the flags of a job that may use group cpu."""
    groups = ["--group", "gpu=1", "--group", "cpu=1"]
    where = ["--engine", "ray", "--address", cluster.address, *groups]
    return [*where, "--offload", "auto", "--run-dir", "r"]


@contextmanager
def another_job_on(host: str, cluster: EmulatedCluster) -> Iterator[subprocess.Popen[bytes]]:
    """One of the host's cores is another job's, until that job is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER_JOB, host],
        env=clean_environment(RAY_ADDRESS=cluster.address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"True\n"
        try:
            yield job
        finally:
            job.kill()


def test_auto_uses_a_group_that_is_predicted_to_help_and_checks_that(
    cluster: EmulatedCluster, tmp_path: Path
):
    shutil.copy(SCRIPTS / "offload_recorded.py", tmp_path)
    ended = run_job(tmp_path, *auto(cluster), "offload_recorded.py", "12")
    assert ended.returncode == 0, ended.stderr
    message = "headrace: --offload auto: group cpu makes batches from now on: with its 3 cores"
    assert message in ended.stderr
    assert "cpu-0 makes batches, on 3 cores" in ended.stderr
    assert "headrace: --offload auto: predicted" in ended.stderr
    checked = json.loads((tmp_path / "r" / "prediction.json").read_text())
    assert checked["remedy"] == "auxiliary-hosts"
    assert checked["measured"] > 1
    assert checked["predicted"] > 1.05
    rates = ("--price", "gpu=1", "--price", "cpu=0.5")
    ended = run_here(tmp_path, "cost", "show", "r", *rates, "--json")
    cost = json.loads(ended.stdout)
    assert [(group["name"], group["hosts"]) for group in cost["groups"]] == [("gpu", 1), ("cpu", 1)]
    assert cost["usd"] == pytest.approx(1.5 * cost["seconds"] / 3600)
    assert all(0 < group["cpu_utilisation"] <= 1 for group in cost["groups"])


def test_auto_leaves_a_group_alone_that_would_not_help(cluster: EmulatedCluster, tmp_path: Path):
    shutil.copy(SCRIPTS / "probed" / "points.py", tmp_path)
    (tmp_path / "train.py").write_text(BUSY)
    terminal, enough = tmp_path / "terminal", tmp_path / "enough"
    with started(tmp_path, *auto(cluster), "train.py", str(enough)) as job:
        line = "headrace: --offload auto: group cpu is not used: with its 3 cores"
        eventually(lambda: line in terminal.read_text() or job.poll() is not None, line)
        enough.touch()
        assert job.wait(DEADLINE_S) == 0, terminal.read_text()
    assert line in terminal.read_text()
    assert "makes batches" not in terminal.read_text()
    assert not (tmp_path / "r" / "prediction.json").exists()


def test_hosts_that_join_or_are_free_again_are_used_and_lost_ones_stop_nothing(
    cluster: EmulatedCluster, tmp_path: Path
):
    shutil.copy(SCRIPTS / "offload_nodes.py", tmp_path)
    arguments = [*flags(cluster), "--group", "cpu=3", "--run-dir", "r"]
    with (
        another_job_on("cpu-0", cluster) as other,
        started(tmp_path, *arguments, "offload_nodes.py") as job,
    ):

        def prints(text: str) -> bool:
            return text in (tmp_path / "terminal").read_text()

        eventually(lambda: prints("epoch whole, 1 hosts"), "an epoch without any")
        shape = RayNodeSpec(group="cpu", name="cpu-9", address="127.0.0.1", cpus=1,
                          store_bytes=80 << 20)  # fmt: skip
        added = cluster.add(shape)
        eventually(lambda: prints("cpu-9 makes batches, on 1 cores"), "the host that joined")
        eventually(lambda: prints("epoch whole, 2 hosts"), "an epoch with it")
        eventually(lambda: prints("group cpu has 2 of 3 hosts; "), "how many are missing")
        eventually(lambda: prints("group cpu: busy with other jobs: cpu-0; "), "which are busy")
        assert not prints("cpu-0 makes batches")
        other.kill()
        eventually(lambda: prints("cpu-0 makes batches, on 3 cores"), "the host that is free again")
        eventually(lambda: prints("epoch whole, 3 hosts"), "an epoch with both")
        added.kill()
        eventually(lambda: prints("auxiliary host cpu-9 is lost"), "its end printed")
        (tmp_path / "enough").touch()
        assert job.wait(DEADLINE_S) == 0, (tmp_path / "terminal").read_text()
    (attempt,) = attempts_of(tmp_path / "r")
    assert attempt["exit_code"] == 0


def test_iterable_datasets_are_shared_among_as_many_cores_as_were_asked_for(
    cluster: EmulatedCluster, tmp_path: Path
):
    shutil.copy(SCRIPTS / "offload_iterated_epochs.py", tmp_path)
    arguments = [*flags(cluster), "--group", "cpu=1:cpus=2"]
    with started(tmp_path, *arguments, "offload_iterated_epochs.py", "4") as job:
        terminal = tmp_path / "terminal"
        eventually(lambda: "epoch whole, 2 hosts" in terminal.read_text(), "an epoch with both")
        (tmp_path / "enough").touch()
        assert job.wait(DEADLINE_S) == 0, terminal.read_text()
    (first, *_) = [line for line in terminal.read_text().splitlines() if "epoch whole" in line]
    assert "2 hosts" in first, "the first epoch waits for hosts that are about to be there"
