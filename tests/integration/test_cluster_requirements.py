"""`requirements.txt` beside the script: on every host, each with its own Python."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psutil import process_iter

from headrace.cluster.ray_node import EmulatedCluster, RayNodeSpec
from headrace.platforms.instance_groups import GroupSpec
from jobs import DEADLINE_S, alive, attempts_of, eventually, on_two_hosts, started
from jobs_here import run_job
from machine import needs
from network_hosts import NetworkHost, network_hosts, ray_folders
from pip_environments import make_environment, make_wheel, packages_of

pytestmark = pytest.mark.timeout(900)

TRAIN = """
import os, signal, tinyhr
print("tinyhr", tinyhr.VERSION, "in", os.getcwd(), flush=True)
while True:
    signal.pause()
"""
DRIVES = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
def version():
    import drivenhr
    return drivenhr.VERSION
nodes = {node["NodeName"]: node["NodeID"] for node in ray.nodes()}
asked = {name: version.options(scheduling_strategy=On(nodes[name], False)) for name in nodes}
print({name: ray.get(asked[name].remote()) for name in sorted(asked)}, flush=True)
"""
NO_RANK = "import pathlib; pathlib.Path('rank').touch()"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter of this file's own, in place of that of the tests."""
    python = make_environment(tmp_path_factory.mktemp("python") / "own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        yield python


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a host that shares its environment with no other."""
    return make_environment(tmp_path_factory.mktemp("another") / "own")


@pytest.fixture(scope="module")
def cluster(python: Path, another: Path) -> Iterator[EmulatedCluster]:
    """Two hosts, each with an environment of its own."""
    cluster = EmulatedCluster([GroupSpec(name="gpu", hosts=1, cpus=1)], devices=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(another))
        shape = RayNodeSpec(group="gpu", name="gpu-1", address="127.0.0.1", cpus=1,
                          store_bytes=80 << 20)  # fmt: skip
        cluster.add(shape)
    yield cluster
    cluster.close()


def test_what_cannot_be_installed_ends_the_job_before_any_rank(
    cluster: EmulatedCluster, tmp_path: Path
):
    (tmp_path / "train.py").write_text(NO_RANK)
    (tmp_path / "requirements.txt").write_text("--no-index\nnosuchhr\n")
    ended = run_job(tmp_path, *on_two_hosts(cluster.address), "--max-restarts", "3", "train.py")
    assert ended.returncode == 1
    assert "requirements.txt cannot be installed: pip of " in ended.stderr
    assert "    ERROR: No matching distribution found for nosuchhr\nCheck the name" in ended.stderr
    assert "requirements.txt could not be installed on gpu-" in ended.stderr
    assert "and no rank was started. All that pip said: " in ended.stderr
    assert "`--requirements none` leaves the file out" in ended.stderr
    assert not (tmp_path / "rank").exists()
    # Those that are named; another's pip may have been stopped before it got as far.
    (named,) = re.findall(r"could not be installed on (gpu-\d(?:, gpu-\d)*),", ended.stderr)
    for host in named.split(", "):
        log = tmp_path / "r" / "logs" / "attempt-1" / f"requirements-{host}.log"
        assert "No matching distribution found for nosuchhr" in log.read_text()


def test_a_stop_while_hosts_install_ends_all(cluster: EmulatedCluster, tmp_path: Path):
    (tmp_path / "train.py").write_text(NO_RANK)
    with socket.create_server(("127.0.0.1", 0)) as server:  # an index that answers nothing
        url = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
        (tmp_path / "more.txt").write_text(f"--index-url {url}\nnosuchhr\n")
        with started(
            tmp_path, *on_two_hosts(cluster.address), "--requirements", "more.txt", "train.py"
        ) as job:
            eventually(
                lambda: "installs more.txt" in (tmp_path / "terminal").read_text(), "pip at work"
            )
            at_work = naming(tmp_path / "more.txt")
            assert any(" -m pip install " in line for line in at_work.values())
            job.send_signal(signal.SIGTERM)
            assert job.wait(DEADLINE_S) == 143
            eventually(lambda: not any(map(alive, at_work)), "the end of pip")
    assert not (tmp_path / "rank").exists()


def test_what_a_driver_starts_on_any_host_finds_what_the_file_names(
    cluster: EmulatedCluster, python: Path, another: Path, tmp_path: Path
):
    make_wheel(tmp_path / "wheels", "drivenhr", "3.0")
    (tmp_path / "driven.txt").write_text("--no-index\n--find-links wheels\ndrivenhr\n")
    (tmp_path / "drive.py").write_text(DRIVES)
    flags = ["--requirements", "driven.txt", "--driver"]
    ended = run_job(tmp_path, *on_two_hosts(cluster.address), *flags, "drive.py")
    assert ended.returncode == 0, ended.stderr
    assert f"{dict.fromkeys(['gpu-0', 'gpu-1'], '3.0')}" in ended.stdout
    assert all("drivenhr" in packages_of(each) for each in (python, another))


def naming(file: Path) -> dict[int, str]:
    """The command lines of the processes that name a file, by their pids."""
    command_lines = {
        one.pid: " ".join(one.info["cmdline"] or ()) for one in process_iter(["cmdline"])
    }
    return {pid: line for pid, line in command_lines.items() if str(file) in line}


@needs("networks")
def test_every_host_of_a_join_has_it_one_that_cannot_is_left_out_of_help_and_ctrl_c_ends_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    job, runs = tmp_path / "job", tmp_path / "runs"
    runs.mkdir()
    make_wheel(job / "wheels", "tinyhr", "1.0", ["smallhr"])
    make_wheel(job / "wheels", "smallhr", "2.0")
    (job / "train.py").write_text(TRAIN)
    (job / "requirements.txt").write_text(
        "--no-index\n--find-links wheels\n./wheels/tinyhr-1.0-py3-none-any.whl\n"
    )
    names = ["gpu-a", "cpu-a", "cpu-b"]
    with network_hosts(names) as network:
        pythons = {host.name: make_environment(tmp_path / host.name) for host in network}
        (pythons["cpu-b"].parents[1] / "pip.conf").write_text("[global]\nrequire-hashes = on\n")
        jobs = [
            joining(host, network, job, runs, pythons[host.name], monkeypatch) for host in network
        ]
        for text in (
            "cpu-a makes batches", "cpu-b is left out of this job\n", "[gpu/gpu-a:0] tinyhr 1.0",
        ):  # fmt: skip
            eventually(lambda text=text: text in network[0].output(job), text)
        folders = ray_folders([network[0], network[2]])
        jobs[1].kill()
        eventually(lambda: not network[1].pids(), "the end of all on cpu-a")
        eventually(lambda: "cpu-a (cpu) has left" in network[0].output(job), "that it has left")
        jobs[0].send_signal(signal.SIGINT)
        codes = [each.wait(DEADLINE_S) for each in jobs]
        assert codes == [130, -signal.SIGKILL, 130], network[0].output(job)
        for host in network:
            eventually(lambda host=host: not host.pids(), f"the end of all on {host.name}")
        assert len(folders) == 2
        assert not any(folder.exists() for folder in folders)
        output = network[0].output(job)
    for host in ("gpu-a", "cpu-a"):
        assert packages_of(pythons[host]) >= {"tinyhr", "smallhr"}
        assert f"headrace: {host} has installed smallhr==2.0, tinyhr==1.0\n" in output
    assert packages_of(pythons["cpu-b"]) == set()
    assert "headrace: cpu-b: requirements.txt cannot be installed: pip of" in output
    assert f"[gpu/gpu-a:0] tinyhr 1.0 in {job}\n" in output
    (attempt,) = attempts_of(runs / "r")
    installed = ["smallhr==2.0", "tinyhr==1.0"]
    assert attempt["installed"] == dict.fromkeys(("gpu-a", "cpu-a"), installed)


def joining(
    host: NetworkHost, network: list[NetworkHost], job: Path, runs: Path, python: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Start a host's part; what one host has of the job's run, the others have not."""
    monkeypatch.setattr(sys, "executable", str(python))
    is_head = host is network[0]
    hosts = ",".join(each.name for each in network)
    group = host.name.partition("-")[0]
    return host.start(
        job, "cluster", "join", "--hosts", hosts, "--group", group, "--group", "gpu=1",
        "--offload", "cpu", "--nproc-per-node", "1", "--run-dir", str(runs / "r"), "train.py",
        empty=None if is_head else runs, RAY_AUTH_TOKEN="", RAY_AUTH_TOKEN_PATH="",
    )  # fmt: skip
