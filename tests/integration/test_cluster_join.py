"""`headrace cluster join` on several hosts: network namespaces, real Ray, real torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jobs import DEADLINE_S, eventually
from network_hosts import NetworkHost, network_hosts, sagemaker, why_not

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
    pytest.mark.timeout(900),
]

HOSTS = ["algo-1", "algo-2", "algo-3"]
HEAD = "algo-2"
GROUPS = {"cpu": ["algo-1", "algo-3"], "gpu": [HEAD]}
STAY = """
import pathlib, signal, sys, time
pathlib.Path("running").touch()
while not pathlib.Path("end").exists():
    time.sleep(0.05)
print("the script has ended, argv", sys.argv[1:])
"""
MEET = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size(), flush=True)
dist.barrier()
sys.exit(5 if dist.get_rank() == 1 else 0)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[dict[str, NetworkHost]]:
    with network_hosts(HOSTS) as hosts:
        yield {host.name: host for host in hosts}


@pytest.fixture
def hosts(network: dict[str, NetworkHost]) -> Iterator[dict[str, NetworkHost]]:
    yield network
    for host in network.values():  # what a failing test has left
        host.kill_all()


def in_groups(host: NetworkHost) -> dict[str, str]:
    return sagemaker(host, GROUPS)


def environments(host: NetworkHost) -> list[dict[str, str]]:
    """Those of a host's processes."""
    found = []
    for pid in host.pids():
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
            found.append(dict(entry.partition("=")[::2] for entry in text.split("\0")))
    return found


def command_lines(host: NetworkHost) -> dict[int, str]:
    found = {}
    for pid in host.pids():
        with suppress(OSError):
            text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            found[pid] = text.replace("\0", " ").strip()
    return found


def nothing_is_left(hosts: dict[str, NetworkHost]) -> None:
    for host in hosts.values():
        eventually(lambda host=host: not host.pids(), f"the end of all on {host.name}")


def heeds_signals(pid: int) -> bool:
    """Whether a launcher holds signals back, to look at them in their turn."""
    status = Path(f"/proc/{pid}/status").read_text()
    (held,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(held, 16) >> (signal.SIGINT - 1) & 1)


def ray_folders(hosts: dict[str, NetworkHost]) -> set[Path]:
    """Those of the hosts' Ray nodes, as long as these run: each has its token file there."""
    return {
        Path(variables["RAY_AUTH_TOKEN_PATH"]).parent
        for host in hosts.values()
        for variables in environments(host)
        if variables.get("RAY_AUTH_TOKEN_PATH")
    }


def has_no_dashboard(host: NetworkHost) -> bool:
    """Whether nobody serves Ray's dashboard there; on a head it has a process in any case."""
    lines = [line for line in command_lines(host).values() if "/ray/dashboard/dashboard.py" in line]
    silent = [{"--host=127.0.0.1", "--disable-frontend"} <= set(line.split()) for line in lines]
    return all(silent) and len(silent) == (host.name == HEAD) and 8265 not in host.listens_at()


def start_all(
    hosts: dict[str, NetworkHost], folder: Path, *arguments: str
) -> dict[str, subprocess.Popen[bytes]]:
    """Start every host's part of a SageMaker job, and wait for its script."""
    (folder / "train.py").write_text(STAY)
    jobs = {
        name: host.start(folder, "cluster", "join", *arguments, **in_groups(host))
        for name, host in hosts.items()
    }
    eventually((folder / "running").exists, "the script")
    return jobs


def test_a_sagemaker_job_with_groups_loses_two_hosts_and_its_token_is_seen_nowhere(
    hosts: dict[str, NetworkHost], tmp_path: Path
):
    jobs = start_all(hosts, tmp_path, "--offload", "cpu", "--run-dir", "r", "train.py", "--lr", "3")
    eventually(lambda: "algo-1 makes batches" in hosts[HEAD].said(tmp_path), "the help of algo-1")
    folders = ray_folders(hosts)
    assert len(folders) == 3
    (token,) = {(folder / "token").read_text() for folder in folders}  # of all hosts
    assert len(token) == 64
    for host in hosts.values():
        lines = command_lines(host)
        starts = [line for line in lines.values() if "ray.scripts.scripts start" in line]
        assert starts
        assert all(" --object-store-memory=" in line for line in starts)
        assert has_no_dashboard(host)
        assert not any(token in line for line in lines.values())
        assert not any(token in str(variables) for variables in environments(host))
    told_by_ray = [path for folder in folders for path in folder.rglob("*.log")]
    assert told_by_ray
    assert not any(token in path.read_text(errors="replace") for path in told_by_ray)
    (ray,) = (
        pid
        for pid, line in command_lines(hosts["algo-3"]).items()
        if "ray.scripts.scripts start" in line and "process_groups" not in line
    )
    os.kill(ray, signal.SIGKILL)
    assert jobs["algo-3"].wait(DEADLINE_S) == 1
    assert "Ray has ended on algo-3, so that this host has no" in hosts["algo-3"].said(tmp_path)
    eventually(lambda: "algo-3 (cpu) has left" in hosts[HEAD].said(tmp_path), "that it has left")
    of_killed = ray_folders({"algo-1": hosts["algo-1"]})  # nobody will be left to remove it
    jobs["algo-1"].kill()
    eventually(lambda: not hosts["algo-1"].pids(), "the end of all on algo-1")
    eventually(lambda: "algo-1 (cpu) has left" in hosts[HEAD].said(tmp_path), "that it has left")
    assert jobs[HEAD].poll() is None
    (tmp_path / "end").touch()
    assert jobs[HEAD].wait(DEADLINE_S) == 0
    said = hosts[HEAD].said(tmp_path)
    assert "a Ray cluster at 10.213.7.2:6379, hosts: gpu 1, cpu 2\n" in said
    assert "[gpu/algo-2:0] the script has ended, argv ['--lr', '3']\n" in said
    for name in GROUPS["cpu"]:
        assert f"{name} (cpu) has joined {HEAD}\n" in hosts[name].said(tmp_path)
    assert not any(token in host.said(tmp_path) for host in hosts.values())
    assert not any(token in path.read_text() for path in (tmp_path / "r").rglob("rank-*"))
    nothing_is_left(hosts)
    assert not any(folder.exists() for folder in folders - of_killed)


def test_by_hand_ranks_of_two_hosts_meet_and_a_failing_one_fails_the_job_everywhere(
    hosts: dict[str, NetworkHost], tmp_path: Path
):
    (tmp_path / "train.py").write_text(MEET)
    token = tmp_path / "token"
    token.write_text("a-token-that-somebody-made\n")
    head, other = hosts["algo-1"], hosts["algo-3"]
    jobs = [
        host.start(
            tmp_path, "cluster", "join", "--head", head.address, "--group", "gpu",
            "--group", "gpu=2:cpus=1", "--nproc-per-node", "1", "--token-file", str(token),
            "train.py", GLOO_SOCKET_IFNAME="eth0",
        )
        for host in (other, head)
    ]  # fmt: skip
    assert [job.wait(DEADLINE_S) for job in jobs] == [5, 5], head.said(tmp_path)
    assert f"[gpu/{other.address}:1] sum 3.0 of 2\n" in head.said(tmp_path)
    assert "headrace: rank 1 failed: exit code 5\n" in head.said(tmp_path)
    assert f"the job has failed on {head.address}: exit code 5\n" in other.said(tmp_path)
    assert "a-token" not in head.said(tmp_path) + other.said(tmp_path)
    (run_json,) = (tmp_path / "runs").glob("*/run.json")
    assert "--group=gpu=2:cpus=1" in run_json.read_text(), "the cores that are counted, too"
    nothing_is_left(hosts)


def test_a_host_that_does_not_come_or_has_left_is_named_at_the_deadline(
    hosts: dict[str, NetworkHost], tmp_path: Path
):
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    # A busy machine takes long to start Ray, and algo-1 is to have come at the deadline.
    join = ["cluster", "join", "--hosts-timeout", "60s", "train.py"]
    leaving = hosts["algo-3"].start(tmp_path, *join, **in_groups(hosts["algo-3"]))
    eventually(lambda: heeds_signals(leaving.pid), "that it heeds signals")
    leaving.send_signal(signal.SIGINT)
    assert leaving.wait(DEADLINE_S) == 130
    jobs = [
        hosts[name].start(tmp_path, *join, **in_groups(hosts[name])) for name in (HEAD, "algo-1")
    ]
    assert [job.wait(DEADLINE_S) for job in jobs] == [1, 1]
    said = hosts[HEAD].said(tmp_path)
    assert "headrace: waiting for hosts: algo-3\n" in said
    assert "Not all hosts have come after 60 s; missing: algo-3. Run" in said
    assert "the job has failed on algo-2: exit code 1" in hosts["algo-1"].said(tmp_path)
    assert "started" not in said
    nothing_is_left(hosts)


def test_sigterm_on_a_head_that_waits_for_hosts(hosts: dict[str, NetworkHost], tmp_path: Path):
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    head = hosts[HEAD].start(tmp_path, "cluster", "join", "train.py", **in_groups(hosts[HEAD]))
    eventually(lambda: "raylet" in str(command_lines(hosts[HEAD])), "that Ray is starting")
    (folder,) = ray_folders(hosts)
    head.send_signal(signal.SIGTERM)
    assert head.wait(DEADLINE_S) == 143
    nothing_is_left(hosts)
    assert not folder.exists()


def start_two(
    hosts: dict[str, NetworkHost], folder: Path
) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """Start a job of two hosts, algo-1 its head and algo-3, and wait for its script."""
    (folder / "train.py").write_text(STAY)
    flags = ["cluster", "join", "--hosts", "algo-1,algo-3", "--group"]
    head, other = (
        hosts[name].start(folder, *flags, group, "train.py", RAY_AUTH_TOKEN_PATH="")
        for name, group in (("algo-1", "gpu"), ("algo-3", "cpu"))
    )
    eventually((folder / "running").exists, "the script")
    return head, other


def test_ctrl_c_on_the_head_ends_all(hosts: dict[str, NetworkHost], tmp_path: Path):
    head, other = start_two(hosts, tmp_path)
    folders = ray_folders(hosts)
    assert len(folders) == 2
    head.send_signal(signal.SIGINT)
    assert [head.wait(DEADLINE_S), other.wait(DEADLINE_S)] == [130, 130]
    nothing_is_left(hosts)
    assert not any(folder.exists() for folder in folders)


def test_kill_9_of_the_head_s_launcher_ends_all(hosts: dict[str, NetworkHost], tmp_path: Path):
    head, other = start_two(hosts, tmp_path)
    head.kill()
    assert other.wait(DEADLINE_S) == 1
    assert "The head algo-1 is lost: " in hosts["algo-3"].said(tmp_path)
    nothing_is_left(hosts)
