"""Within a job that SageMaker or Vertex AI has started: its hosts, ranks and folders are taken."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from headrace.platforms.instance_groups import HostGroup
from headrace.platforms.sagemaker import (
    SageMakerTree,
    sagemaker_v3_variables,
    sagemaker_variables,
)
from headrace.platforms.training_job import Channel, HostResources, TrainingJob
from headrace.platforms.vertex import VertexPaths, vertex_variables
from jobs import DEADLINE_S, clean_environment, headrace
from jobs_here import run_job

MACHINE = HostResources(cpus=2, interface="lo")
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


# Ranks that torchrun on several hosts has started: it starts none before all hosts have met.
COUNTS = """
import os, pathlib, time
rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
shared = pathlib.Path("ranks")
shared.mkdir(exist_ok=True)
(shared / str(rank)).touch()
while len(list(shared.iterdir())) < size:
    time.sleep(0.01)
print("rank", rank, "of", size, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outer(host: str, folder: Path, *, sdk: int = 2) -> dict[str, str]:
    """What a container of SageMaker's has on a host."""
    tree = SageMakerTree(folder / host)
    tree.lay_out(JOB, host, MACHINE, code=folder, channels={"train": folder})
    variables_of = sagemaker_variables if sdk == 2 else sagemaker_v3_variables
    return {
        **variables_of(JOB, host, tree.folders, MACHINE),
        "SAGEMAKER_BASE_DIR": tree.folders.base,
    }


def on_all_hosts(
    folder: Path, script: str, environments: Mapping[str, Mapping[str, str]], *flags: str
) -> dict[str, CompletedProcess[str]]:
    """Run the script on every host at once, and return how it ended on each one."""
    (folder / "train.py").write_text(script)
    processes = {
        host: subprocess.Popen(
            headrace("run", "--run-dir", f"run-{host}", *flags, "train.py"),
            cwd=folder, env=clean_environment(**environment), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for host, environment in environments.items()
    }  # fmt: skip
    ended = {}
    for host, process in processes.items():
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
        ended[host] = CompletedProcess(process.args, 0, out, err)
    return ended


def test_ranks_on_a_jobs_hosts_meet_and_its_folders_are_used(tmp_path: Path) -> None:
    environments = {host: outer(host, tmp_path) for host in JOB.hosts}
    ended = on_all_hosts(
        tmp_path,
        TRAIN,
        environments,
        "--contract",
        "sagemaker",
        "--profile",
        "off",
        "--distribution",
        "torch_distributed",
        "--hyperparameter",
        "lr=1",
        "--master-port",
        str(free_port()),
    )
    for rank, host in enumerate(GPU.hosts):
        model = tmp_path / host / "model"
        assert f"[rank {rank}] rank {rank} sum 2.0\n" in ended[host].stdout
        assert f"[rank {rank}] {host} {model} ['--lr', '1']\n" in ended[host].stdout
    assert ended["127.0.0.4"].stdout.startswith("runs once\n127.0.0.4 ")


@pytest.mark.parametrize(("service", "ranks_here"), [("SageMaker", 1), ("Vertex AI", 2)])
def test_ranks_meet_those_of_the_jobs_other_hosts_though_no_flag_names_the_contract(
    tmp_path: Path, service: str, ranks_here: int
) -> None:
    """On SageMaker by SDK 3, which names no groups but in a file; in the pools of Vertex AI."""
    if service == "SageMaker":
        environments = {host: _by_sdk_3(host, tmp_path) for host in GPU.hosts}
    else:
        job = TrainingJob(name="outer", groups=(GPU,), entry_point="train.py", distributed=("gpu",))
        places = VertexPaths(output="/gcs/bucket", data={})
        environments = {host: vertex_variables(job, host, places) for host in job.hosts}
    port, size = str(free_port()), 2 * ranks_here
    flags = ["--profile", "off", "--nproc-per-node", str(ranks_here)]
    ended = on_all_hosts(tmp_path, COUNTS, environments, *flags, "--master-port", port)
    for number, host in enumerate(GPU.hosts):
        assert f"started within a job of {service}, so as with" in ended[host].stderr
        for rank in range(number * ranks_here, (number + 1) * ranks_here):
            line = f"rank {rank} of {size} 127.0.0.2 {port}\n"
            assert line in ended[host].stdout
    if service == "SageMaker":
        flags += ["--dry-run", "--contract=torchrun"]
        alone = run_job(tmp_path, *flags, "train.py", **environments[GPU.hosts[1]])
        assert "hosts         1, this machine\n" in alone.stdout, alone.stderr


def _by_sdk_3(host: str, folder: Path) -> dict[str, str]:
    environment = outer(host, folder, sdk=3)
    config = folder / host / "input" / "config" / "resourceconfig.json"
    hosts = {"current_host": host, "hosts": list(GPU.hosts)}
    config.write_text(json.dumps({**hosts, "current_instance_type": "ml.g5.xlarge"}))
    environment.pop("SM_RESOURCE_CONFIG")
    return {**environment, "SM_HOSTS": json.dumps(GPU.hosts), "SM_HOST_COUNT": "2"}


def test_flags_that_name_the_contract_of_vertex_have_as_many_ranks_on_each_host(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(COUNTS)
    job = TrainingJob(name="outer", groups=(GPU,), entry_point="train.py", distributed=("gpu",))
    variables = vertex_variables(job, "127.0.0.3", VertexPaths(output="/gcs/bucket", data={}))
    flags = ["--dry-run", "--contract", "vertex", "--nproc-per-node", "2"]
    shown = run_job(tmp_path, *flags, "train.py", **variables)
    assert "2, of the job around this process\n" in shown.stdout, shown.stderr
    assert "ranks         2 here\n" in shown.stdout


def test_a_job_around_is_reported_though_the_script_runs_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ended = run_job(tmp_path, "--profile=off", "train.py", **outer("127.0.0.3", tmp_path))
    assert ended.stdout.startswith("runs once\n127.0.0.3 ")
    assert "within a job of SageMaker, so as with --contract sagemaker" in ended.stderr
    assert "this is host 127.0.0.3 of a job of 3" in ended.stderr


def test_what_describes_no_whole_job_is_reported_with_a_remedy_that_fits(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    half = {"SM_CURRENT_HOST": "algo-2"}
    ended = run_job(tmp_path, "--contract=sagemaker", "--profile=off", "train.py", **half)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "does not say which hosts there are: neither SM_HOSTS" in ended.stderr
    assert "in no job of theirs, unset these variables" in ended.stderr
    assert "--head" not in ended.stderr
    ended = run_job(
        tmp_path, "--profile=off", "train.py", **half
    )  # which may be for the script alone
    assert (ended.returncode, ended.stdout) == (0, "it has begun\n")
    assert "this is taken for no job of SageMaker's" in ended.stderr


def test_flags_that_contradict_the_job_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    environment = outer("127.0.0.2", tmp_path)
    has_hosts = "of a job that has hosts already: 127.0.0.2, 127.0.0.3, 127.0.0.4"
    for flag, message in (
        ("--channel=train=.", "of a job that has its channels already"),
        ("--checkpoint-local-path=/ck", "of a job that has its checkpoints' folder already"),
        ("--group=gpu=3", has_hosts),
    ):
        ended = run_job(tmp_path, "--contract", "sagemaker", flag, "train.py", **environment)
        assert ended.returncode == 2
        assert message in ended.stderr


@pytest.mark.parametrize("service", ["SageMaker", "Vertex AI"])
@pytest.mark.parametrize(
    "flags",
    [[], ["--nproc-per-node=2"], ["--dry-run"], ["--dry-run", "--nproc-per-node=2"]],
    ids=["script", "ranks", "dry run", "dry run of ranks"],
)
def test_what_the_services_upload_themselves_is_refused_before_anything_starts(
    tmp_path: Path, service: str, flags: list[str]
) -> None:
    """Scripts write to the job's folders, of which no copy would have been made."""
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    if service == "SageMaker":
        environment = outer("127.0.0.2", tmp_path)
        own = {"--checkpoint-uri": "checkpoint_s3_uri", "--output-path": "the job's output_path"}
    else:
        job = TrainingJob(name="outer", groups=(GPU,), entry_point="train.py", distributed=("gpu",))
        places = VertexPaths(output="/gcs/bucket", data={})
        environment = dict(vertex_variables(job, "127.0.0.2", places))
        own = {"--checkpoint-uri": "AIP_CHECKPOINT_DIR", "--output-path": "AIP_MODEL_DIR"}
    for flag, uploaded in own.items():
        url = tmp_path / "there"
        ended = run_job(tmp_path, *flags, flag, str(url), "train.py", **environment)
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
        assert f"{flag} {url}: this is host " in ended.stderr
        assert uploaded in ended.stderr
        assert not url.exists()


def test_a_variable_that_says_otherwise_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    message = "SM_MODEL_DIR is set to '/my/model' here, and the contract would tell"
    for flags in ([], ["--dry-run"], ["--dry-run", "--group=gpu=2"]):
        ended = run_job(tmp_path, "--contract", "sagemaker", *flags, "train.py",
                    SM_MODEL_DIR="/my/model")  # fmt: skip
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count(message) == 1


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--dry-run", "--group=gpu=2"]])
def test_a_variable_of_the_command_line_that_contradicts_the_contract_is_refused(
    tmp_path: Path, flags: list[str]
) -> None:
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    ended = run_job(tmp_path, "--contract", "sagemaker", "--environment", "SM_NUM_CPUS=999", *flags,
                "train.py")  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("--environment SM_NUM_CPUS=999: the contract says SM_NUM_CPUS") == 1


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("api_key", "SM_HP_API_KEY"), ("hf-token", "SM_HP_HF_TOKEN"),
        ("wandb-key", "SM_HP_WANDB_KEY"), ("api_key", "SM_HPS"), ("api_key", "SM_USER_ARGS"),
    ],
)  # fmt: skip
def test_a_secret_that_contradicts_the_contract_is_not_shown(
    tmp_path: Path, name: str, variable: str
) -> None:
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    old, new = "canary0old1two3 4", "canary5new6two7 8"
    if name == "wandb-key":  # a name that suggests a secret, with values as keys are
        old, new = old.replace(" ", ""), new.replace(" ", "")
    texts = {"SM_HPS": json.dumps({name: old}), "SM_USER_ARGS": json.dumps([f"--{name}", old])}
    own = texts.get(variable, old)
    flags = ["--contract", "sagemaker", "--hyperparameter", f"{name}={new}"]
    for ended, message in (
        (run_job(tmp_path, *flags, "train.py", **{variable: own}), f"{variable} is set to '"),
        (run_job(tmp_path, *flags, "--environment", f"{variable}={own}", "train.py"),
         f"--environment {variable}="),
    ):  # fmt: skip
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count(message) == 1
        assert ended.stderr.count("***") == 2
        assert "canary" not in ended.stderr
        assert "two" not in ended.stderr


def test_a_dry_run_within_a_job_reports_that_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for flags in (["--contract", "sagemaker", "--nproc-per-node=2"], ["--nproc-per-node=2"], []):
        ended = run_job(tmp_path, "--dry-run", *flags, "train.py", **outer("127.0.0.3", tmp_path))
        assert ended.returncode == 0, ended.stderr
        assert "127.0.0.2, 127.0.0.3, 127.0.0.4" in ended.stdout
        assert "127.0.0.3\nranks" in ended.stdout.replace("ranks  ", "ranks")
        detected = "as with --contract sagemaker" in ended.stderr
        assert detected == ("--contract" not in flags)


TF = {"TF_CONFIG": "{}", "AIP_EXPERIMENT_NAME": "another"}
SM = {"SM_CHANNEL_VALIDATION": "/stale", "SM_HP_LR": "9"}


@pytest.mark.parametrize(
    ("contract", "set_here", "message"),
    [
        ("sagemaker", SM, "SM_CHANNEL_VALIDATION is set here, and 1 more: SM_HP_LR; the contract"),
        ("sagemaker-v3", {"SM_USER_ARGS": "[]"}, "SM_USER_ARGS is set here; the contract has no"),
        ("vertex", TF, "AIP_EXPERIMENT_NAME is set here, and 1 more: TF_CONFIG; the contract has"),
        ("sagemaker,vertex", {**SM, **TF}, "and 3 more: SM_CHANNEL_VALIDATION, SM_HP_LR, TF_CON"),
    ],
)
def test_a_variable_of_another_job_that_the_contract_lacks_is_reported_before_anything_starts(
    tmp_path: Path, contract: str, set_here: dict[str, str], message: str
) -> None:
    """Names by contract: facts/launch.md, 5b and 5c."""
    (tmp_path / "train.py").write_text("print('it has begun')\n")
    ended = run_job(tmp_path, "--contract", contract, "--profile=off", "train.py", **set_here)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert message in ended.stderr
    assert "/stale" not in ended.stderr  # it may be anything, a password too


def test_variables_that_no_contract_has_or_none_that_is_asked_for_are_the_users(
    tmp_path: Path,
) -> None:
    names = {
        "SM_LOGS_OF_MINE": "1", "AIP_EXPERIMENT_NAME": "mine", "TF_CONFIG": "{}",
        "SAGEMAKER_REGION": "eu-west-1", "NCCL_DEBUG": "INFO", "MASTER_ADDR": "elsewhere",
    }  # fmt: skip
    (tmp_path / "train.py").write_text(f"import os\nprint(*map(os.environ.get, {list(names)}))\n")
    ended = run_job(tmp_path, "--contract", "sagemaker", "--profile=off", "train.py", **names)
    *values, master = ended.stdout.split()
    assert values == ["1", "mine", "{}", "eu-west-1", "INFO"], ended.stderr
    assert master != "elsewhere"  # where ranks meet is the job's business


def test_a_script_that_runs_headrace_itself_goes_on_by_the_same_contract(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("import os\nprint(os.environ['SM_CHANNEL_TRAIN'])\n")
    command = [*headrace("run", "--contract", "sagemaker", "--profile=off"), "inner.py"]
    (tmp_path / "train.py").write_text(
        "import os, subprocess\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n"
        f"    subprocess.run({command}, check=True)\n"
    )
    ended = run_job(
        tmp_path,
        "--contract=sagemaker",
        "--channel=train=.",
        "--hyperparameter=lr=1",
        "--group=gpu=2",
        "--profile=off",
        "--run-dir=../r",
        "train.py",
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("/data/train\n") == 1
