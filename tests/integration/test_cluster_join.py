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
from machine import needs
from network_hosts import (
    NetworkHost,
    environments,
    network_hosts,
    ray_folders,
    sagemaker,
)

pytestmark = [
    needs("networks"),
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
sys.exit(5)
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
    """Whether a launcher holds signals back, or waits for one as it does in between."""
    status = Path(f"/proc/{pid}/status").read_text()
    (held,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    is_held = bool(int(held, 16) >> (signal.SIGINT - 1) & 1)
    return is_held or "sigtimedwait" in Path(f"/proc/{pid}/wchan").read_text()


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


def test_a_sagemaker_job_with_groups_loses_a_host_fails_everywhere_and_its_token_is_seen_nowhere(
    hosts: dict[str, NetworkHost], tmp_path: Path
):
    jobs = start_all(hosts, tmp_path, "--offload", "cpu", "--run-dir", "r", "train.py", "--lr", "3")
    eventually(lambda: "algo-1 makes batches" in hosts[HEAD].output(tmp_path), "the help of algo-1")
    folders = ray_folders(hosts.values())
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
    reported_by_ray = [path for folder in folders for path in folder.rglob("*.log")]
    assert reported_by_ray
    assert not any(token in path.read_text(errors="replace") for path in reported_by_ray)
    (ray,) = (
        pid
        for pid, line in command_lines(hosts["algo-3"]).items()
        if "ray.scripts.scripts start" in line and "process_groups" not in line
    )
    os.kill(ray, signal.SIGKILL)
    assert jobs["algo-3"].wait(DEADLINE_S) == 1
    assert "Ray has ended on algo-3, so that this host has no" in hosts["algo-3"].output(tmp_path)
    eventually(lambda: "algo-3 (cpu) has left" in hosts[HEAD].output(tmp_path), "that it has left")
    assert jobs[HEAD].poll() is None
    (tmp_path / "end").touch()
    assert [jobs[HEAD].wait(DEADLINE_S), jobs["algo-1"].wait(DEADLINE_S)] == [5, 5]
    output = hosts[HEAD].output(tmp_path)
    assert "a Ray cluster at 10.213.7.2:6379, hosts: gpu 1, cpu 2\n" in output
    assert "[gpu/algo-2:0] the script has ended, argv ['--lr', '3']\n" in output
    assert "headrace: rank 0 failed: exit code 5\n" in output
    assert f"the job has failed on {HEAD}: exit code 5\n" in hosts["algo-1"].output(tmp_path)
    for name in GROUPS["cpu"]:
        assert f"{name} (cpu) has joined {HEAD}\n" in hosts[name].output(tmp_path)
    assert not any(token in host.output(tmp_path) for host in hosts.values())
    assert not any(token in path.read_text() for path in (tmp_path / "r").rglob("rank-*"))
    nothing_is_left(hosts)
    assert not any(folder.exists() for folder in folders)


def test_a_host_that_does_not_come_or_has_left_is_named_at_the_deadline(
    hosts: dict[str, NetworkHost], tmp_path: Path
):
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    join = ["cluster", "join", "--hosts-timeout", "15s", "train.py"]  # from when Ray runs there
    leaving = hosts["algo-3"].start(tmp_path, *join, **in_groups(hosts["algo-3"]))
    eventually(lambda: heeds_signals(leaving.pid), "that it heeds signals")
    leaving.send_signal(signal.SIGINT)
    assert leaving.wait(DEADLINE_S) == 130
    head = hosts[HEAD].start(tmp_path, *join, **in_groups(hosts[HEAD]))
    assert head.wait(DEADLINE_S) == 1
    output = hosts[HEAD].output(tmp_path)
    assert "headrace: waiting for hosts: algo-1, algo-3\n" in output
    assert "Not all hosts have come after 15 s; missing: algo-1, algo-3. Run" in output
    assert "started" not in output
    nothing_is_left(hosts)


def test_sigterm_on_a_head_that_waits_for_hosts(hosts: dict[str, NetworkHost], tmp_path: Path):
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    head = hosts[HEAD].start(tmp_path, "cluster", "join", "train.py", **in_groups(hosts[HEAD]))
    eventually(lambda: "raylet" in str(command_lines(hosts[HEAD])), "that Ray is starting")
    (folder,) = ray_folders(hosts.values())
    head.send_signal(signal.SIGTERM)
    assert head.wait(DEADLINE_S) == 143
    nothing_is_left(hosts)
    assert not folder.exists()


def test_kill_9_of_the_head_s_launcher_ends_all(hosts: dict[str, NetworkHost], tmp_path: Path):
    (tmp_path / "train.py").write_text(STAY)
    flags = ["cluster", "join", "--hosts", "algo-1,algo-3", "--group"]
    head, other = (
        hosts[name].start(tmp_path, *flags, group, "train.py", RAY_AUTH_TOKEN_PATH="")
        for name, group in (("algo-1", "gpu"), ("algo-3", "cpu"))
    )
    eventually((tmp_path / "running").exists, "the script")
    head.kill()
    assert other.wait(DEADLINE_S) == 1
    assert "The head algo-1 is lost: " in hosts["algo-3"].output(tmp_path)
    nothing_is_left(hosts)
