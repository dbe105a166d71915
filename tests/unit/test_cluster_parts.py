"""Parts of a job on a cluster that need no cluster: what travels, how logs grow."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cluster.agent import FolderTail, HostAgent, HostFacts, append_growths
from headrace.cluster.host_identity import host_marker, is_same_host
from headrace.cluster.offload_fleet import PersistentNotices, group_shortages, partitions_of_job
from headrace.cluster.ray_cluster import (
    PlacedAgent,
    RayHost,
    check_ray_is_installed,
    living_hosts,
    ray_connection,
)
from headrace.cluster.ray_node import FreeMemory, emulated_store_bytes, object_store_bytes
from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.jobs.host_run import HostAssignment
from headrace.jobs.hosts.host_commands import HostCommands, HostInstalls, job_working_dir
from headrace.jobs.hosts.script_ray import warn_unrecorded_script
from headrace.jobs.requirements import code_folder, find_requirements
from headrace.jobs.spec import JobSpec
from headrace.jobs.torchrun_args import parse_torchrun_flags, torchrun_job
from headrace.platforms.instance_groups import GroupSpec
from headrace.records.run_folder import open_run_folder
from jobs import clean_environment
from machine import skip_without


def test_a_copy_of_a_folder_grows_as_it_does(tmp_path: Path):
    folder, copy = tmp_path / "logs", tmp_path / "copy"
    tail = FolderTail(folder, "**/rank-*")
    assert tail.growth() == []
    (folder / "restart-1").mkdir(parents=True)
    first, second = folder / "rank-0.stdout", folder / "restart-1" / "rank-1.stderr"
    first.write_bytes(b"one\xff\n")
    (folder / "other").write_bytes(b"not a rank's")
    second.touch()
    append_growths(copy, tail.growth())
    with first.open("ab") as file:
        file.write(b"x" * (9 << 20))
    while growths := tail.growth():
        assert sum(len(growth.content) for growth in growths) <= 8 << 20
        append_growths(copy, growths)
    copied = {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*.std*")}
    assert copied == {Path("rank-0.stdout"): first.read_bytes(),
                      Path("restart-1/rank-1.stderr"): b""}  # fmt: skip


def test_a_mark_is_found_where_it_was_left_alone(tmp_path: Path):
    with host_marker(tmp_path) as mark:
        assert is_same_host(mark)
        Path(mark.path).write_text("another's")
        assert not is_same_host(mark)
    assert not Path(mark.path).exists()
    assert not is_same_host(mark)


LOOKS = """
import json, sys
from headrace.cluster.host_identity import HostMarker, is_same_host
print(is_same_host(HostMarker(**json.loads(sys.argv[1]))))
"""


def test_a_container_that_has_the_mark_is_a_host_of_its_own(tmp_path: Path):
    """It has the machine's boot and the run's files; its process ids mean nothing here."""
    skip_without("processes")
    container, found = ["unshare", "--pid", "--fork", "--mount-proc"], []
    with host_marker(tmp_path) as mark:
        for apart in ([], container):
            looks = [*apart, sys.executable, "-c", LOOKS, json.dumps(asdict(mark))]
            ended = subprocess.run(
                looks, capture_output=True, text=True, check=True, env=clean_environment()
            )
            found.append(ended.stdout.strip())
    assert found == ["True", "False"]


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ({"a1": ("gpu", "10.0.0.1"), "b2": ("cpu", "10.0.0.2")}, ["gpu", "cpu"]),
        # As of hosts that one script starts: `ray start --node-name=cpu`.
        (
            {"a1": ("gpu", "10.0.0.1"), "b2": ("cpu", "10.0.0.2"), "c3": ("cpu", "10.0.0.3")},
            ["gpu", "cpu-b2", "cpu-c3"],
        ),
        ({"b2": ("cpu", "10.0.0.2"), "dead": ("cpu", "10.0.0.3")}, ["cpu"]),
        ({"a1": ("", "10.0.0.1"), "b2": ("", "10.0.0.2")}, ["10.0.0.1", "10.0.0.2"]),
        ({"a1": ("", "10.0.0.1"), "b2": ("", "10.0.0.1")}, ["10.0.0.1-a1", "10.0.0.1-b2"]),
        (
            {f"{number}" * 56: ("cpu", "127.0.0.1") for number in (1, 2)},
            ["cpu-11111111", "cpu-22222222"],
        ),
    ],
)
def test_no_two_hosts_have_one_name(nodes: dict[str, tuple[str, str]], names: list[str]):
    """Batches, logs and records of a host go by its name."""
    known = [
        {
            "NodeID": node_id,
            "NodeName": name,
            "NodeManagerAddress": address,
            "Alive": node_id != "dead",
            "Labels": {"headrace.group": "cpu"},
            "Resources": {"CPU": 4.0},
        }
        for node_id, (name, address) in nodes.items()
    ]
    hosts = living_hosts(SimpleNamespace(nodes=lambda: known))
    assert [host.name for host in hosts] == names
    assert [host.node_id for host in hosts] == [each for each in nodes if each != "dead"]


@pytest.mark.parametrize(
    ("given", "folder", "named"),
    [
        (["train.py", "a"], ".", "train.py"),
        (["src/train.py", "--", "train.py"], ".", "src/train.py"),
        (["../elsewhere/train.py", "train.py"], "../elsewhere", "train.py"),
        (["-m", "package.train", "b"], ".", "package.train"),
    ],
)
def test_what_goes_along_and_how_the_script_is_named_there(
    given: list[str], folder: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here = tmp_path / "here"
    for path in (here / "train.py", here / "src/train.py", tmp_path / "elsewhere/train.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(here)
    argv = ["--engine", "ray", "--nproc-per-node", "2", *given]
    job = parse_torchrun_flags(argv)
    working_dir = job_working_dir(job)
    assert Path(working_dir.folder) == (here / folder).resolve()
    assert working_dir.named(job.script) == named
    assert job.spec.torchrun_flags[:2] == ("--nproc-per-node", "2")


def test_a_member_meets_the_others_whatever_the_host_s_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PET_STANDALONE", "1")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "elsewhere:1")
    job = parse_torchrun_flags(["--max-restarts", "3", "train.py"])
    member = HostAssignment(
        spec=job.spec.to_json(),
        name="a",
        prefix="gpu/a:{rank}",
        restarts=2,
        hosts=2,
        number=1,
        address="10.0.0.2",
        master_address="10.0.0.1",
        master_port=29400,
    )
    received = HostAssignment.from_json(member.to_json())
    job = torchrun_job(JobSpec.from_json(received.spec))
    received.apply(job.args)
    assert (job.args.nnodes, job.args.node_rank, job.args.max_restarts) == ("2", 1, 0)
    assert (job.args.standalone, job.args.rdzv_endpoint) == (False, "")
    assert (job.args.master_addr, job.args.master_port) == ("10.0.0.1", 29400)


def test_what_belongs_to_one_host_does_not_travel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOLD", "yes")
    monkeypatch.setenv("LD_PRELOAD", "here.so")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("PIP_CONSTRAINT", "pins.txt")
    monkeypatch.setenv("PIP_FIND_LINKS", "https://wheels.test/ file:///wheels")
    monkeypatch.setenv("PIP_BUILD_CONSTRAINT", "https://pins.test/build.txt")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.test/simple")
    travels = env.portable_environment()
    pips = {"PIP_CONSTRAINT", "PIP_FIND_LINKS", "PIP_BUILD_CONSTRAINT", "PIP_INDEX_URL"}
    assert travels.keys() & pips == {"PIP_BUILD_CONSTRAINT", "PIP_INDEX_URL"}
    assert travels["TOLD"] == "yes"
    assert travels["CUDA_LAUNCH_BLOCKING"] == "1"
    assert not travels.keys() & {"PATH", "HOME", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it
    below = env.ray_program_environment(travels, is_whole=False)
    assert below["TOLD"] == "yes"
    assert below["CUDA_VISIBLE_DEVICES"] == "3"
    assert below["PATH"]
    assert "OMP_NUM_THREADS" not in env.ray_program_environment({"A": "b"}, is_whole=True)


@pytest.mark.parametrize(
    "name", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]
)
def test_certificates_that_a_host_has_not_leave_it_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own, sent = tmp_path / "own.pem", tmp_path / "company.pem"
    monkeypatch.setenv(name, str(sent))
    travels = env.portable_environment()
    assert travels[name] == str(sent)

    def found() -> str | None:
        return env.ray_program_environment(travels, is_whole=False).get(name)

    monkeypatch.setenv(name, str(own))
    assert found() == str(own)
    monkeypatch.delenv(name)
    assert found() is None
    assert env.ray_program_environment(travels, is_whole=True)[name] == str(sent)
    sent.touch()
    assert found() == str(sent)
    for value in (f"{own}:{sent}", ""):
        travels[name] = value
        assert found() == value


def test_devices_by_their_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert env.visible_devices(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5")
    assert env.visible_devices(2) == ["4", "GPU-5"]
    assert env.visible_devices(0) == []


GIB = 1 << 30


@pytest.mark.parametrize(
    ("total", "shared", "agents", "data"),
    [
        (20 * GIB, 20 * GIB, 2 * GIB, 6 * GIB),
        (100 * GIB, 5 * GIB, GIB // 2, 10**10),  # in /dev/shm it has no place, so on disk
        (100 * GIB, 20 * GIB, 2 * GIB, 19 * GIB),
        (20 * GIB, 64 << 20, 80 << 20, 6 * GIB),  # a container's /dev/shm: on disk altogether
    ],
)
def test_the_object_store_is_small_where_agents_alone_use_it(
    total: int, shared: int, agents: int, data: int
):
    memory = FreeMemory(total, shared)
    assert [object_store_bytes(memory, holds_data=holds) for holds in (False, True)] == [
        agents,
        data,
    ]


def test_emulated_hosts_share_the_memory_of_one():
    assert emulated_store_bytes(FreeMemory(20 * GIB, 10 * GIB), 4) == GIB // 4
    assert emulated_store_bytes(FreeMemory(99 * GIB, 99 * GIB), 1) == GIB
    with pytest.raises(LaunchError, match="has 64 MiB free, too little for the object stores of 2"):
        emulated_store_bytes(FreeMemory(GIB, 64 << 20), 2)


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_a_head_too_busy_for_a_client_is_asked_three_times(
    failures: int, monkeypatch: pytest.MonkeyPatch
):
    """Which a real one does by chance: a process that it starts for the client takes too long."""
    import ray

    asked = []

    def init(**_: object) -> None:
        asked.append(1)
        if len(asked) <= failures:
            why = "Starting Ray client server failed. See ray_client_server_23000.err"
            raise ConnectionAbortedError(f"Initialization failure from server:\nTraceback\n{why}.")

    monkeypatch.setattr(ray, "init", init)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        fails = pytest.raises(LaunchError, match=r"can be used: Starting Ray client server failed")
        with fails if failures == 3 else nullcontext(), ray_connection(address):
            pass
    assert len(asked) == min(failures + 1, 3)


def test_nobody_at_an_address():
    with pytest.raises(LaunchError, match=r"no Ray cluster at 127\.0\.0\.1:1 that can be used"), \
         ray_connection("127.0.0.1:1"):  # fmt: skip
        pass


def test_where_ray_is_missing_the_remedy_is_reported(monkeypatch: pytest.MonkeyPatch):
    check_ray_is_installed()
    monkeypatch.setitem(sys.modules, "ray", None)
    remedy = r"needs Ray, .*`pip install 'headrace\[ray\]'`, on every host"
    with pytest.raises(UsageError, match=remedy), ray_connection("auto"):
        pass
    with pytest.raises(UsageError, match=remedy):
        check_ray_is_installed()


def test_what_hosts_install_is_the_file_beside_the_script_or_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for path in ("src/train.py", "src/requirements.txt", "requirements.txt", "plain/train.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.chdir(tmp_path)

    def found(*argv: str) -> Path | None:
        job = parse_torchrun_flags(["--engine", "ray", *argv])
        return find_requirements(job.spec.environment.requirements, code_folder(job))

    assert found("src/train.py") == tmp_path / "src" / "requirements.txt"
    assert found("plain/train.py") is None
    assert found("-m", "src.train") == tmp_path / "requirements.txt"
    assert found("--requirements", "none", "src/train.py") is None
    named = ("--requirements", "src/../requirements.txt", "plain/train.py")
    assert found(*named) == tmp_path / "requirements.txt"
    with pytest.raises(UsageError, match=r"--requirements no.txt: there is no such file in .*"):
        found("--requirements", "no.txt", "src/train.py")


@pytest.mark.parametrize(
    ("declared", "there", "partitions"),
    [
        (None, [16, 8], 24),
        (None, [], 0),
        (GroupSpec(name="cpu", hosts=2, cpus=16), [4], 32),
        (GroupSpec(name="cpu", hosts=2), [16], 32),
        (GroupSpec(name="cpu", hosts=2), [], 0),
    ],
)
def test_how_many_share_an_iterable_dataset_is_settled_by_what_was_asked_for(
    declared: GroupSpec | None, there: list[int], partitions: int
):
    assert partitions_of_job(declared, there) == partitions


def host_of(group: str | None, number: int = 0) -> RayHost:
    name = f"{group}-{number}"
    return RayHost(node_id=name, name=name, address="10.0.0.2", group=group, cpus=4, gpus=0)


def test_what_an_auxiliary_group_lacks_is_reported():
    hosts = [host_of("gpu"), host_of("CPU"), host_of("CPU", 1), host_of(None)]
    (none,) = group_shortages("cpus", None, "gpu", hosts, [])
    assert "group cpus has no host, and training goes on without" in none
    assert "the cluster has 2 of group CPU, 1 of group gpu, 1 of no group. Did you mean " in none
    assert "--offload CPU? Hosts that come later are used: `ray start --labels headrace.gr" in none
    (alone,) = group_shortages("cpu", GroupSpec(name="cpu", hosts=2), "gpu", hosts[:1], [])
    assert "Did you mean" not in alone, "the group that trains is another one"
    declared = GroupSpec(name="CPU", hosts=3)
    fewer, busy = group_shortages("CPU", declared, "gpu", hosts, [hosts[2], hosts[1]])
    assert "group CPU has 2 of 3 hosts; training goes on" in fewer
    assert "group CPU: busy with other jobs: CPU-0, CPU-1; training goes on" in busy
    assert group_shortages("CPU", GroupSpec(name="CPU", hosts=2), "gpu", hosts, []) == []


def test_what_stands_for_a_while_is_reported_once_and_again_where_it_was_over_meanwhile():
    reported: list[str] = []
    standing = PersistentNotices(reported.append)
    for now_s in range(60):
        standing.update(["a", *(["b"] if now_s % 10 else [])], now_s)
    assert reported == ["a"]
    standing.update([], 60)
    for now_s in range(60, 90):
        standing.update(["a", "b"], now_s)
    assert reported == ["a", "a", "b"]


def test_a_file_that_does_not_go_along_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    working_dir = job_working_dir(parse_torchrun_flags(["train.py"]))
    folder = open_run_folder(run_dir="r", name=None, script="train.py")
    attempt = folder.start_attempt(command=[], argv=[], world_size=1)

    def of(file: Path, *, is_copied: bool) -> HostInstalls:
        return HostInstalls(
            file, working_dir, is_named=True, is_copied=is_copied, folder=folder, attempt=attempt
        )

    with pytest.raises(UsageError, match=r"more.txt lies outside .*here, which goes along"):
        of(tmp_path / "more.txt", is_copied=True)
    of(tmp_path / "more.txt", is_copied=False)
    there = of(tmp_path / "here" / "a" / "more.txt", is_copied=True).command("h", is_here=False)
    assert there[there.index("--file") + 1] == "a/more.txt"


def test_what_is_not_recorded_of_a_script_that_drives_is_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    host = RayHost(node_id="a", name="gpu-1", address="10.0.0.2", group="gpu", cpus=4, gpus=1)

    def reported(*, is_drivers: bool, profile: str = "on") -> str:
        facts = HostFacts(address=host.address, is_drivers=is_drivers, free_port=1, folder="/job")
        warn_unrecorded_script(PlacedAgent(actor=None, host=host, facts=facts), profile)
        return capfd.readouterr().err

    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    assert reported(is_drivers=True) == reported(is_drivers=False, profile="off") == ""
    assert "the script runs on gpu-1, not where this command does" in reported(is_drivers=False)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert "this is a job of Ray's own (ray job submit)" in reported(is_drivers=True)


def test_what_overtook_older_news_of_hosts_stays():
    agent = HostAgent()
    agent.replace_file("hosts", b"three hosts", 5)
    agent.replace_file("hosts", b"two hosts", 4)
    agent.replace_file("key", b"a key", 0)
    folder = agent._own_folder()
    assert (folder / "hosts").read_bytes() == b"three hosts"
    agent.replace_file("hosts", b"four hosts", 6)
    assert (folder / "hosts").read_bytes() == b"four hosts"
    assert sorted(path.name for path in folder.iterdir()) == ["hosts", "in-use", "key"]
    agent.remove_folder()
    assert not folder.exists()


def test_a_host_gets_its_part_of_a_job_by_a_file_and_not_as_an_argument(tmp_path: Path):
    (tmp_path / "train.py").touch()
    job = parse_torchrun_flags(
        ["--engine", "ray", "--group", "gpu=1", "--environment", "HF_TOKEN=canary",
         str(tmp_path / "train.py")]
    )  # fmt: skip
    folder = open_run_folder(run_dir=str(tmp_path / "r"), name=None, script="train.py")
    attempt = folder.start_attempt(command=[], argv=[], world_size=1)
    group = GroupSpec(name="gpu", hosts=1)
    host = RayHost(node_id="n", name="gpu-0", address="10.0.0.1", group="gpu", cpus=1, gpus=0)
    facts = HostFacts(address="10.0.0.1", is_drivers=False, free_port=1, folder="/")
    agent = PlacedAgent(actor=None, host=host, facts=facts)
    commands = HostCommands(
        job=job, groups=[group], working_dir=job_working_dir(job), folder=folder, attempt=attempt
    )
    program = commands.program([agent], agent, 0, variables={}, files={"a": b"b"}, version=1)
    assert not any("canary" in word for word in program.command)
    (tmp_path / "assignment").write_bytes(program.files["assignment"])
    read = HostAssignment.read(str(tmp_path / "assignment"))
    assert JobSpec.from_json(read.spec).environment.environment == {"HF_TOKEN": "canary"}
    assert program.files["a"] == b"b"
