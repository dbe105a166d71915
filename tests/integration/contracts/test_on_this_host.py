"""Scripts as people write them for SageMaker and Vertex AI, unmodified, on this host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.jobs.environment import host_environment
from headrace.records.reader import Records
from jobs import attempts_of, clean_environment, headrace
from jobs_here import run_job, run_verb
from machine import needs, skip_without

SCRIPT_MODE = """
import argparse, json, os, pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--use_amp", type=str)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
parser.add_argument("--hosts", default=json.loads(os.environ["SM_HOSTS"]))
parser.add_argument("--current-host", default=os.environ["SM_CURRENT_HOST"])
parser.add_argument("--num-gpus", default=os.environ["SM_NUM_GPUS"])
args = parser.parse_args()
assert args.hosts == [args.current_host] == [os.environ["MASTER_ADDR"]]
print("got", args.batch_size, args.use_amp, args.epochs, os.getcwd(), flush=True)
print("read", [path.name for path in pathlib.Path(args.train).iterdir()])
import beside
pathlib.Path(args.model_dir, "model.pth").write_text("weights")
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "metrics.json").write_text("{}")
"""
FIXED_PATHS = """
import json, pathlib, socket
base = pathlib.Path("/opt/ml")
values = json.loads((base / "input/config/hyperparameters.json").read_text())
hosts = json.loads((base / "input/config/resourceconfig.json").read_text())["hosts"]
print("got", values["epochs"], socket.gethostbyname(hosts[0]))
print("read", (base / "input/data/train/a.txt").read_text())
(base / "model" / "model.pth").write_text("weights")
"""
LISTS = """
import os, pathlib
for name in ("PATH", "URL", "LOCALHOST", "UPPER"):
    folder = pathlib.Path(os.environ[f"SM_CHANNEL_{name}"])
    print(name, [path.name for path in folder.iterdir()], flush=True)
"""
RESUMES = """
import os, pathlib, sys
checkpoints = pathlib.Path("/opt/ml/checkpoints")
done = sorted(int(path.stem) for path in checkpoints.glob("*.pt"))
start = done[-1] + 1 if done else 0
print("from", start, flush=True)
for epoch in range(start, 4):
    (checkpoints / f"{epoch}.pt").write_text("state")
    if epoch == 1 and start == 0:
        raise RuntimeError(f"the instance is taken away ({os.environ['HF_TOKEN']})")
"""
STEPS = """
import os, sys, torch
from torch.utils.data import DataLoader
print(sys.argv[1:], os.getcwd(), os.environ["SM_USER_ENTRY_POINT"], flush=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(torch.rand(40, 4), batch_size=4):
    model(batch).sum().backward()
    optimizer.step()
"""
VERTEX = """
import argparse, json, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
spec = json.loads(os.environ["CLUSTER_SPEC"])
assert spec["task"]["type"] == "workerpool0" and "TF_CONFIG" not in os.environ
assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
model_dir = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
assert model_dir.endswith("/")
print("got", args.lr, os.listdir(os.environ["AIP_TRAINING_DATA_URI"]))
pathlib.Path(model_dir, "model.pth").write_text("weights")
pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"], "1.pt").write_text("state")
pathlib.Path(os.environ["AIP_TENSORBOARD_LOG_DIR"], "events").write_text("")
"""
# Its backend for torch's own way to begin, and the rest of the library as of before that.
SMDDP = """
import os, torch
import smdistributed.dataparallel.torch.torch_smddp
import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

torch.distributed.init_process_group(backend="smddp")
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Linear(2, 1, bias=False), device_ids=[dist.get_local_rank()])
model(torch.full((1, 2), float(dist.get_rank() + 1))).sum().backward()
print("rank", dist.get_rank(), "of", dist.get_world_size(), model.module.weight.grad.tolist())
total = torch.tensor([1.0])
dist.all_reduce(total)
dist.barrier()
print("sum", total.item(), torch.distributed.get_backend(), os.environ["SM_HOSTS"], flush=True)
del model
torch.distributed.destroy_process_group()
os._exit(0)  # where a thread of gloo's wants Python's lock as Python ends, torch aborts
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a script's folder and a channel's data."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.txt").write_text("a picture")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "beside.py").write_text("")
    return tmp_path


def test_a_script_mode_script_gets_arguments_channels_and_folders(job: Path) -> None:
    (job / "src" / "train.py").write_text(SCRIPT_MODE)
    ended = run_job(
        job, "--name", "a", "--contract", "sagemaker", "--channel", "train=images",
        "--hyperparameter", "batch-size=16", "--hyperparameter", "use_amp=true",
        "--source-dir", "src", "train.py", "--epochs", "3",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert f"got 16 True 3 {job / 'src'}\nread ['a.txt']\n" in ended.stdout
    (host,) = (job / "runs" / "a" / "hosts").iterdir()
    assert (host / "ml" / "model" / "model.pth").read_text() == "weights"
    assert (host / "ml" / "output" / "data" / "metrics.json").exists()
    assert (host / "ml" / "output" / "success").exists()
    (attempt,) = attempts_of(job / "runs" / "a")
    assert "--channel=train=images" in attempt["command"]


def test_paths_below_opt_ml_are_the_jobs_own_and_nobody_elses(job: Path) -> None:
    skip_without("no-opt-ml")
    (job / "train.py").write_text(FIXED_PATHS)
    flags = ["--contract", "sagemaker", "--channel", "train=images", "--hyperparameter", "epochs=2"]
    ended = run_job(job, "--name", "a", *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "got 2 127.0.0.1\nread a picture\n" in ended.stdout
    assert (job / "runs" / "a" / "hosts" / "algo-1" / "ml" / "model" / "model.pth").exists()
    assert not Path("/opt/ml").exists()


def test_a_checkpoint_is_there_again_when_the_run_goes_on_and_the_failure_is_reported(
    job: Path,
) -> None:
    (job / "train.py").write_text(RESUMES)
    flags = ["--name", "a", "--contract", "sagemaker", "--environment", "HF_TOKEN=s3sa/me+0"]
    ended = run_job(job, *flags, "train.py")
    assert (ended.returncode, ended.stdout) == (1, "from 0\n"), ended.stderr
    output = job / "runs" / "a" / "hosts" / "algo-1" / "ml" / "output"
    failure = (output / "failure").read_text()
    assert failure.startswith("ExecuteUserScriptError:\nExitCode 1\n")
    assert "RuntimeError: the instance is taken away (***)" in failure
    ended = run_job(job, *flags, "train.py")
    assert (ended.returncode, ended.stdout) == (0, "from 2\n"), ended.stderr
    assert not (output / "failure").exists()


def test_a_failure_that_the_script_reports_itself_stays(job: Path) -> None:
    (job / "train.py").write_text(
        "import os, sys\n"
        "open(os.path.join(os.environ['SM_OUTPUT_DIR'], 'failure'), 'w').write('no labels')\n"
        "sys.exit(3)\n"
    )
    ended = run_job(job, "--name", "a", "--contract", "sagemaker", "train.py")
    assert ended.returncode == 3
    failure = job / "runs" / "a" / "hosts" / "algo-1" / "ml" / "output" / "failure"
    assert failure.read_text() == "no labels"


def test_a_script_of_vertex_finds_its_cluster_and_its_folders(job: Path) -> None:
    (job / "train.py").write_text(VERTEX)
    ended = run_job(
        job, "--name", "a", "--contract", "vertex", "--channel", "training=images",
        "--hyperparameter", "lr=0.1", "train.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "got 0.1 ['a.txt']\n" in ended.stdout
    made = {path.name for path in (job / "runs" / "a" / "output").glob("*/*")}
    assert made == {"model.pth", "1.pt", "events"}


def test_cluster_env_prints_project_and_region_of_vertex(job: Path) -> None:
    ended = run_verb(
        job,
        "cluster",
        "env",
        "--contract",
        "vertex",
        "--channel",
        "train=t.csv",
        GOOGLE_CLOUD_PROJECT="p-1",
        CLOUDSDK_COMPUTE_REGION="europe-west4",
    )
    assert ended.returncode == 0, ended.stderr
    for line in ("CLOUD_ML_PROJECT_ID=p-1", "CLOUD_ML_REGION=europe-west4", "AIP_DATA_FORMAT=csv"):
        assert f"{line}\n" in ended.stdout


def test_both_libraries_for_data_parallel_training_are_there_also_unrecorded(job: Path) -> None:
    """By no more than the contract; with its flag, recorded: test_estimator_cases.py."""
    (job / "train.py").write_text(SMDDP)
    flags = ["--profile", "off", "--contract", "sagemaker-v3", "--nproc-per-node", "2"]
    ended = run_job(job, *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        # The mean of both ranks' gradients, 1 and 2.
        assert f"[rank {rank}] rank {rank} of 2 [[1.5, 1.5]]\n" in ended.stdout
        assert f'[rank {rank}] sum 2.0 smddp ["algo-1"]\n' in ended.stdout


def test_scripts_see_how_many_ranks_a_host_was_asked_to_have(job: Path) -> None:
    (job / "train.py").write_text("")
    flags = ["--contract", "sagemaker", "--distribution", "mpi", "--nproc-per-node", "2"]
    ended = run_job(job, "--dry-run", *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    shown = "".join(line.strip() for line in ended.stdout.splitlines())
    assert 'SM_DISTRIBUTED_CONFIG={"process_count_per_node": 2,' in shown
    assert '"sagemaker_mpi_num_of_processes_per_host":2}' in shown


def test_without_the_contract_there_is_no_such_library(job: Path) -> None:
    (job / "train.py").write_text("import smdistributed\n")
    ended = run_job(job, "train.py")
    assert ended.returncode == 1
    assert "ModuleNotFoundError: No module named 'smdistributed'" in ended.stderr


def test_a_program_of_this_host_starts_where_the_job_does(job: Path) -> None:
    flags = ["--contract", "sagemaker", "--profile", "off"]
    ended = run_job(job, *flags, "/bin/sh", "-c", "pwd")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{job.resolve()}\n"


def test_the_real_library_comes_first(job: Path) -> None:
    real = job / "site" / "smdistributed"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("print('the real one')\n")
    (job / "train.py").write_text("import smdistributed\n")
    ended = run_job(job, "--contract", "sagemaker", "train.py", PYTHONPATH=str(job / "site"))
    assert (ended.returncode, ended.stdout) == (0, "the real one\n"), ended.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--contract=sagemeker"], "it is one of torchrun, sagemaker, sagemaker-v3, vertex. Did"),
        (["--contract=sagemaker,sagemaker-v3"], "they spell the same variables differently"),
        (["--channel=train=images"], "a script finds its channels by its contract"),
        (
            ["--contract=torchrun", "--channel=train=images"],
            "a script finds its channels by its contract",
        ),
        (["--contract=vertex", "--channel=train"], "write it as --channel NAME=URL"),
        (["--contract=vertex", "--channel=a=x", "--channel=a=y"], "a=... is given twice"),
        (["--contract=vertex", "--channel=train=imags"], "--channel train=imags: there is no "),
        (["--contract=vertex", "--channel=train=empty"], "is empty. Name one that holds data"),
        (["--hyperparameter=sagemaker_program=x"], "are SageMaker's own"),
        (
            ["--dry-run", "--contract=sagemaker", "--distribution=smdist"],
            "Did you mean smdistributed?",
        ),
        (["--dry-run", "--distribution=mpi"], "add --contract sagemaker"),
        (["--source-dir=sr"], "--source-dir sr: there is no such folder in"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    job: Path, flags: list[str], message: str
) -> None:
    (job / "train.py").write_text("raise SystemExit('it has begun')\n")
    (job / "empty").mkdir()
    ended = run_job(job, *flags, "train.py")
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert "it has begun" not in ended.stderr


def test_a_channel_may_be_the_url_of_a_folder_of_this_host(job: Path) -> None:
    (job / "train.py").write_text(LISTS)
    data = (job / "images").rename(job / "my set #1%")
    url = data.as_uri()
    places = {
        "path": str(data),
        "url": url,
        "localhost": url.replace("file://", "file://localhost"),
        "upper": url.replace("file://", "FILE://"),
    }
    flags = ["--contract=sagemaker", *(f"--channel={name}={url}" for name, url in places.items())]
    plan = run_job(job, "--dry-run", *flags, "train.py")
    assert plan.stdout.count("1 object, 9 B; File: nothing to move") == len(places), plan.stderr
    ended = run_job(job, "--profile", "off", *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    for name in places:
        assert f"{name.upper()} ['a.txt']\n" in ended.stdout


def test_who_may_mount_nothing_gets_the_folders_elsewhere(job: Path) -> None:
    """Without user namespaces, as in many containers."""
    (job / "train.py").write_text(
        "import os, socket, json\n"
        "print(os.environ['SM_MODEL_DIR'], os.environ['SAGEMAKER_BASE_DIR'])\n"
        "print(socket.gethostbyname(json.loads(os.environ['SM_HOSTS'])[0]))\n"
    )
    none_allowed = Path("/proc/sys/user/max_mnt_namespaces")
    command = headrace("run", "--name", "a", "--contract", "sagemaker", "train.py")
    # A user namespace of its own, in which no further mount namespace may be made.
    script = f'echo 0 > {none_allowed} && exec "$@"'
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *command],
        cwd=job, env=clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    base = job / "runs" / "a" / "hosts" / "127.0.0.1" / "ml"
    assert ended.stdout == f"{base / 'model'} {base}\n127.0.0.1\n"
    assert f"so /opt/ml is {base}" in ended.stderr


def test_what_a_script_sees_is_printed_in_its_own_words(job: Path) -> None:
    """The toolkit that scripts import reads the job from what is there."""
    (job / "train.py").write_text(
        "import json\n"
        "from sagemaker_training.environment import Environment\n"
        "env = Environment()\n"
        "print(json.dumps([env.hosts, env.hyperparameters, env.channel_input_dirs,\n"
        "                  env.is_master, env.model_dir, env.module_name]))\n"
    )
    ended = run_job(
        job, "--contract", "sagemaker", "--channel", "train=images", "--hyperparameter", "x=[1]",
        "train.py", AWS_DEFAULT_REGION="eu-west-1",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [
        ["algo-1"], {"x": [1]}, {"train": "/opt/ml/input/data/train"}, True, "/opt/ml/model",
        "train",
    ]  # fmt: skip


def test_python_that_a_shell_script_starts_is_recorded(tmp_path: Path) -> None:
    """As by `entry_point="train.sh"`: the file may not even be executed."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.sh").write_text(
        f'set -e\necho "of $# arguments: $2"\nexec {sys.executable} inner.py "$@"\n'
    )
    (code / "inner.py").write_text(STEPS)
    (tmp_path / "job.toml").write_text(
        'entry_point = "train.sh"\nsource_dir = "code"\njob_name = "shell"\n'
        '[hyperparameters]\nnote = "a b"\n'
    )
    ended = run_job(tmp_path, "job.toml", "--last")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[:2] == [
        "of 3 arguments: a b", f"['--note', 'a b', '--last'] {code} train.sh",
    ]  # fmt: skip
    steps = Records(tmp_path / "runs" / "shell", 1).table("steps").to_pylist()
    assert len(steps) >= 8
    assert {row["rank"] for row in steps} == {0}


MAKES_PATHS = """
import os, pathlib, re
from urllib.parse import urlparse
WAYS = {
    "itself": lambda d: d,
    "replaced": lambda d: d.replace("gs://", "/gcs/"),
    "replaced short": lambda d: d.replace("gs:/", "/gcs"),
    "sliced": lambda d: "/gcs/" + d[5:],
    "sliced by length": lambda d: "/gcs/" + d[len("gs://"):],
    "sliced and joined": lambda d: os.path.join("/gcs", d[5:]),
    "split": lambda d: "/gcs/" + "/".join(d.split("/")[2:]),
    "bucket and prefix": lambda d: "/".join(["/gcs", d.split("/")[2], *d.split("/")[3:]]),
    "split at gs": lambda d: "/gcs/" + d.split("gs://")[-1],
    "prefix removed": lambda d: "/gcs/" + d.removeprefix("gs://"),
    "stripped": lambda d: "/gcs/" + d.lstrip("gs://"),
    "parsed": lambda d: "/gcs/" + urlparse(d).netloc + urlparse(d).path,
    "pure path": lambda d: pathlib.Path("/gcs") / d.removeprefix("gs://"),
    "by URL": lambda d: "/gcs/" + d.partition("gs://")[2],
    "by two slashes": lambda d: "/gcs/" + d.split("//")[1],
    "matched": lambda d: "/gcs/" + re.match("gs://(.*)", d)[1],
}
for name in ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR"):
    for way, make in WAYS.items():
        try:
            file = pathlib.Path(make(os.environ[name]), way)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except Exception as error:
            print(name, way, "-", type(error).__name__, flush=True)
"""


@needs("mounts")
def test_paths_that_scripts_make_of_their_folders_lead_there_or_nowhere(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MAKES_PATHS)
    ended = run_job(tmp_path, "--profile=off", "--contract=vertex", "--run-dir=r", "train.py")
    assert ended.returncode == 0, ended.stderr
    refused = {"by URL": "OSError", "by two slashes": "IndexError", "matched": "TypeError"}
    ways = set(re.findall(r'^    "(.*?)": lambda', MAKES_PATHS, re.MULTILINE))
    names = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
    for name, folder in zip(names, ("model", "checkpoints", "logs"), strict=True):
        assert {path.name for path in (tmp_path / "r/output" / folder).iterdir()} == (
            ways - refused.keys()
        )
        assert [f"{name} {way} - {error}" for way, error in refused.items()] == [
            line for line in ended.stdout.splitlines() if line.startswith(name)
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "train.py"]
    assert not Path("/gcs").exists()


WRITES_BELOW = """
import os, pathlib, sys
root, code, *names = sys.argv[1:]
pathlib.Path(os.environ["AIP_MODEL_DIR"], "model.pt").touch()
for name in names:
    file = pathlib.Path(root, "bucket", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name)
sys.exit(int(code))
"""


@pytest.mark.parametrize("was_there", [False, True])
def test_files_below_gcs_where_nothing_is_mounted_fail_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    """As where Headrace runs as root in a container that may mount nothing."""
    root = tmp_path / "gcs"
    monkeypatch.setattr(host_environment, "_GCS_ROOT", root)
    monkeypatch.setattr(host_environment, "can_bind_mount", lambda _: False)
    (tmp_path / "train.py").write_text(WRITES_BELOW)
    if was_there:
        (root / "bucket").mkdir(parents=True)
        (root / "bucket" / "old.pt").touch()

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        flags = ["--profile=off", "--contract=vertex", "--name", name]
        return run_job(tmp_path, *flags, "train.py", str(root), *arguments)

    ended = run("none", "0")
    assert (ended.returncode, "lost" in ended.stderr) == (0, False), ended.stderr
    for name, code in (("a", 0), ("b", 3)):  # the second one writes anew what the first one wrote
        ended = run(name, str(code), "model/model.pt", "model/tokens.json")
        assert ended.returncode == (code or 1), ended.stderr
        assert f"2 files were written below {root}, where nothing is mounted: " in ended.stderr
        assert f"mounted: {root}/bucket/model/model.pt, " in ended.stderr
        output = tmp_path / "runs" / name / "output"
        assert f"which are folders of {output}: as paths" in ended.stderr
        assert (output / "model" / "model.pt").exists()
        assert attempts_of(tmp_path / "runs" / name)[-1]["exit_code"] == (code or 1)
