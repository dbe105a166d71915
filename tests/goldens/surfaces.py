"""What the outside sees of this version, as texts by name: `collect(kind)`.

`python tests/goldens/write.py` writes them to tests/goldens/expected; the test compares.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import typer.main
from documentation import records_page

from headrace import DataLoader, ShardDataset
from headrace.cli.main import build_app
from headrace.core.world import usable_cores
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from jobs import run_here

HERE = Path(__file__).parent
ARTEFACTS = HERE / "artefacts"
TERMINAL = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}

TRAIN = "print('trained')\n"
FAILS = "raise ValueError('no labels')\n"
JOB_TOML = """
entry_point = "train.py"
source_dir = "code"
dependencies = ["lib/extra.py"]
environment = {LEVEL = "3"}
instance_groups = [{name = "gpu", type = "ml.g5.xlarge", count = 1}]
distribution = {torch_distributed = {enabled = true}}
profiler_config = {system_monitor_interval_millis = 250}
max_restarts = 1
max_run = 3600
job_name = "named"

[hyperparameters]
batch-size = 16
name = "12"

[inputs]
train = "images"
"""
JOB_YAML = """
entry_point: train.py
source_dir: code
contract: vertex
environment: {LEVEL: "3"}
metric_definitions: [{Name: loss, Regex: "loss=([0-9.]+)"}]
inputs:
  train: {s3_data: images}
"""
GROUPS = ["--group", "gpu=2:cpus=4,gpus=2", "--group", "cpu=1:cpus=8"]
SAGEMAKER = ["--contract", "sagemaker"]
DRY_RUNS: dict[str, list[str]] = {
    "direct": ["train.py"],
    "direct_arguments": ["--name", "base", "train.py", "--lr", "2", "--name", "x"],
    "direct_run_dir": ["--run-dir", "r", "train.py"],
    "module": ["-m", "train"],
    "two_ranks": ["--nproc-per-node", "2", "train.py"],
    "underscores": ["--nproc_per_node=2", "--max_restarts=3", "train.py"],
    "standalone": ["--standalone", "--nproc-per-node", "2", "train.py"],
    "auto_ranks": ["--nproc-per-node", "auto", "train.py"],
    "several_hosts_of_torchrun": ["--nnodes", "2", "--nproc-per-node", "1", "train.py"],
    "sagemaker": [*SAGEMAKER, "train.py"],
    "sagemaker_v3": ["--contract", "sagemaker-v3", "train.py"],
    "vertex": ["--contract", "vertex", "train.py"],
    "both_contracts": ["--contract", "sagemaker,vertex", "train.py"],
    "channel": [*SAGEMAKER, "--channel", "train=images", "train.py"],
    "two_channels": [
        *SAGEMAKER,
        "--channel",
        "train=images",
        "--channel",
        "test=images",
        "train.py",
    ],
    "channel_json": [
        *SAGEMAKER,
        "--channel",
        'train={"uri": "images", "distribution": "ShardedByS3Key", "content_type": "image/jpeg"}',
        "train.py",
    ],
    "hyperparameters": [
        *SAGEMAKER,
        "--hyperparameter",
        "batch-size=16",
        "--hyperparameter",
        "flag=true",
        "train.py",
    ],
    "environment": ["--environment", "LEVEL=3", "--environment", "API_TOKEN=secret", "train.py"],
    "source_dir": [*SAGEMAKER, "--source-dir", "code", "train.py"],
    "dependency": [*SAGEMAKER, "--dependency", "lib/extra.py", "train.py"],
    "metric": ["--metric", "loss=loss=([0-9.]+)", "train.py"],
    "max_run": ["--max-run", "2h", "train.py"],
    "checkpoints": [*SAGEMAKER, "--checkpoint-uri", "saved", "train.py"],
    "checkpoint_path": [
        *SAGEMAKER,
        "--checkpoint-uri",
        "saved",
        "--checkpoint-local-path",
        "/opt/ml/mine",
        "train.py",
    ],
    "output_path": [*SAGEMAKER, "--output-path", "outputs", "train.py"],
    "profile_deep": ["--profile", "deep", "--profile-interval", "250ms", "train.py"],
    "apply": ["--apply", "num_workers=4,pin_memory=on", "train.py"],
    "distribution": [*SAGEMAKER, "--distribution", "torch_distributed", "train.py"],
    "smdistributed": [*SAGEMAKER, "--distribution", "smdistributed", "train.py"],
    "groups": [*SAGEMAKER, "--engine", "local", *GROUPS, "train.py"],
    "groups_ranks": ["--engine", "ray", *GROUPS, "--nproc-per-node", "2", "train.py"],
    "groups_offload": [
        "--engine",
        "ray",
        *GROUPS,
        "--offload",
        "cpu",
        "--nproc-per-node",
        "1",
        "train.py",
    ],
    "groups_distribution": [
        *SAGEMAKER,
        "--engine",
        "ray",
        *GROUPS,
        "--distribution",
        "torch_distributed",
        "train.py",
    ],
    "instance_types": [*SAGEMAKER, "--engine", "ray", "--group", "gpu=2xml.g5.xlarge", "train.py"],
    "restarts": ["--max-restarts", "2", "--nproc-per-node", "1", "train.py"],
    "job_toml": ["job.toml"],
    "job_toml_more": ["--hyperparameter", "epochs=2", "job.toml", "--lr", "2"],
    "job_yaml": ["job.yaml"],
    "job_yaml_named": ["--name", "mine", "job.yaml"],
}
REFUSALS: dict[str, list[str]] = {
    "no_script": ["run"],
    "no_such_script": ["run", "trian.py"],
    "no_such_flag": ["run", "--nprocs", "2", "train.py"],
    "flag_without_value": ["run", "--name"],
    "no_such_contract": ["run", "--contract", "sagemeker", "train.py"],
    "no_such_channel": ["run", *SAGEMAKER, "--channel", "train=imagse", "train.py"],
    "channel_without_url": ["run", *SAGEMAKER, "--channel", "train", "train.py"],
    "no_such_input_mode": ["run", *SAGEMAKER, "--input-mode", "Fiel", "train.py"],
    "no_such_distribution": ["run", *SAGEMAKER, "--distribution", "torch_distribted", "train.py"],
    "no_such_engine": ["run", "--engine", "rya", "train.py"],
    "no_such_profile": ["run", "--profile", "depe", "train.py"],
    "profile_interval": ["run", "--profile-interval", "1ms", "train.py"],
    "ranks_that_cannot_be": ["run", "--nproc-per-node", "0", "--dry-run", "train.py"],
    "hosts_that_cannot_be": ["run", "--nnodes", "2:1", "--dry-run", "train.py"],
    "no_such_apply": ["run", "--apply", "num_worker=4", "train.py"],
    "environment_name": ["run", "--environment", "1x=3", "train.py"],
    "metric_without_group": ["run", "--metric", "loss=loss", "train.py"],
    "max_run": ["run", "--max-run", "soon", "train.py"],
    "dependency": ["run", "--dependency", "libs", "train.py"],
    "no_such_job_file": ["run", "jbo.toml"],
    "flag_behind_job_file": ["run", "job.toml", "--name", "x"],
    "job_file_key": ["run", "wrong.toml"],
    "no_such_run": ["doctor", "nothing"],
    "no_such_rules": ["doctor", "--rules", "amazon"],
    "no_such_dataset": ["data", "info", "nowhere"],
    "pack_nothing": ["data", "pack", "empty", "packed"],
    "resume_nothing": ["resume", "nothing"],
    "report_nothing": ["report", "nothing"],
    "compare_nothing": ["compare", "one", "two"],
    "tune_nothing": ["tune", "trian.py"],
    "no_such_verb": ["dcotor"],
}
CLUSTER_ENVS: dict[str, list[str]] = {
    f"{contract}_{host}": [
        "--contract", contract, *GROUPS, "--host", host, "--channel", "train=s3://bucket/train",
        "--hyperparameter", "batch-size=16", "--distribution", "torch_distributed",
    ]
    for contract in ("sagemaker", "sagemaker-v3", "vertex")
    for host in ("algo-1", "algo-2", "algo-3")
}  # fmt: skip
CLUSTER_ENVS["both_json"] = ["--contract", "sagemaker", "--contract", "vertex", "--json"]


def collect(kind: str) -> dict[str, str]:
    """Return the texts of a kind by their names, such as help/run.

    They are made in a folder whose path is of one length, as long values are wrapped and cut.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-", dir="/tmp") as made:
        folder = Path(made)
        return {f"{kind}/{name}": plain(text, folder) for name, text in KINDS[kind](folder)}


def plain(text: str, folder: Path) -> str:
    """Return a text without what differs from machine to machine."""
    text = text.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")
    text = text.replace(str(ARTEFACTS), "ARTEFACTS")
    text = re.sub(r"\b\d{8}-\d{6}\b", "TIME", text)
    text = re.sub(r"\([\d,]+ characters\)", "(N characters)", text)
    cores = usable_cores()
    text = re.sub(rf"\b{cores} cores, (\d+) devices each", r"CORES cores, \1 devices each", text)
    text = re.sub(rf"(SM_NUM_CPUS=){cores}\b", r"\1CORES", text)
    text = re.sub(rf'("num_cpus": ?|"SM_NUM_CPUS": ?"|\bnum_cpus=){cores}\b', r"\1CORES", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def job_folder(folder: Path) -> Path:
    """Write scripts, data and job files into a folder."""
    for name in ("code", "lib", "images", "empty"):
        (folder / name).mkdir()
    files = {
        "train.py": TRAIN, "fails.py": FAILS, "code/train.py": TRAIN, "lib/extra.py": "",
        "images/a.txt": "a picture", "job.toml": JOB_TOML, "job.yaml": JOB_YAML,
        "wrong.toml": 'entry_point = "train.py"\nhyperparametres = {}\n',
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def helps(_: Path) -> Iterator[tuple[str, str]]:
    for path in _verbs(typer.main.get_command(build_app()), []):
        ended = run_here(HERE, *path, "--help", **TERMINAL)
        yield "_".join(path) or "headrace", ended.stdout


def _verbs(command: object, path: list[str]) -> Iterator[list[str]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from _verbs(below, [*path, name])


def dry_runs(folder: Path) -> Iterator[tuple[str, str]]:
    job_folder(folder)
    for name, arguments in DRY_RUNS.items():
        ended = run_here(folder, "run", "--dry-run", *arguments, **TERMINAL)
        yield name, f"exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"


def refusals(folder: Path) -> Iterator[tuple[str, str]]:
    job_folder(folder)
    for name, arguments in REFUSALS.items():
        harmless = ["--dry-run"] if arguments[0] == "run" else []
        ended = run_here(folder, *arguments[:1], *harmless, *arguments[1:], **TERMINAL)
        assert ended.returncode != 0, (name, ended)
        yield name, f"exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"


def cluster_environments(folder: Path) -> Iterator[tuple[str, str]]:
    for name, arguments in CLUSTER_ENVS.items():
        ended = run_here(folder, "cluster", "env", *arguments, **TERMINAL)
        yield name, f"exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"


def runs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield run.json of jobs, without what differs from run to run."""
    job_folder(folder)
    for name, flags in {
        "direct": ["train.py", "--lr", "1"],
        "fails": ["fails.py"],
        "sagemaker": [*SAGEMAKER, "--channel", "train=images", "--profile", "off", "train.py"],
        "job_file": ["--profile", "off", "plain.yaml"],
    }.items():
        (folder / "plain.yaml").write_text('entry_point: train.py\nenvironment: {LEVEL: "3"}\n')
        here = {**TERMINAL, "SM_CURRENT_INSTANCE_TYPE": "local"}  # and not what the hardware says
        ended = run_here(folder, "run", f"--run-dir={name}", *flags, **here)
        content = json.loads((folder / name / "run.json").read_text())
        for attempt in content["attempts"]:
            for key in ("started_s", "started_boot_s", "ended_s", "versions", "launcher"):
                attempt[key] = type(attempt[key]).__name__
        written = json.dumps(content, indent=1, sort_keys=True)
        yield name, f"exit code {ended.returncode}\n{ended.stderr}{ended.stdout}{written}"


def records(_: Path) -> Iterator[tuple[str, str]]:
    yield "schema", records_page()


def diagnoses(folder: Path) -> Iterator[tuple[str, str]]:
    for name in ("alone", "ranks"):
        shutil.copytree(ARTEFACTS / "recorded" / name, folder / name)
        ended = run_here(folder, "doctor", name, "--json", **TERMINAL)
        rounded = json.loads(ended.stdout, parse_float=lambda text: float(f"{float(text):.3g}"))
        yield f"{name}_json", json.dumps(rounded, indent=1, sort_keys=True)
        yield f"{name}_text", run_here(folder, "doctor", name, **TERMINAL).stdout
        sagemaker = run_here(folder, "doctor", name, "--rules", "sagemaker", **TERMINAL)
        yield f"{name}_sagemaker", sagemaker.stdout


def batches(_: Path) -> Iterator[tuple[str, str]]:
    """Yield which samples, and which bytes, each batch of each rank has."""
    lines = []
    for seed, world, workers in [(0, 1, 0), (3, 1, 2), (3, 2, 0), (7, 3, 0)]:
        for rank in range(world):
            loader = DataLoader(
                ShardDataset(str(ARTEFACTS / "dataset")), batch_size=5, shuffle=True, seed=seed,
                num_workers=workers, rank=rank, world=world,
            )  # fmt: skip
            for epoch in range(2):
                for number, batch in enumerate(loader):
                    digest = hashlib.sha256(batch["jpg"].numpy().tobytes()).hexdigest()[:16]
                    keys = ",".join(key.rpartition("/")[2] for key in batch["__key__"])
                    lines.append(
                        f"seed {seed} rank {rank} of {world} epoch {epoch} batch {number}: "
                        f"{keys} {digest}"
                    )
    yield "hashes", "\n".join(lines)


def packs(folder: Path) -> Iterator[tuple[str, str]]:
    lines = []
    for shard_bytes in (12_000, 50_000):
        destination = folder / str(shard_bytes)
        pack(str(ARTEFACTS / "images"), str(destination), PackOptions(shard_bytes=shard_bytes))
        for file in sorted(path for path in destination.rglob("*") if path.is_file()):
            data = file.read_bytes()
            if file.name == "manifest.json":  # says where the images were, and when they were made
                data = json.dumps({**json.loads(data), "source": {}, "checksum": ""}).encode()
            digest = hashlib.sha256(data).hexdigest()
            lines.append(f"{file.relative_to(folder)} {len(data)} {digest}")
    yield "hashes", "\n".join(lines)


KINDS: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    "help": helps,
    "dry_run": dry_runs,
    "refusal": refusals,
    "cluster_env": cluster_environments,
    "run_json": runs,
    "records": records,
    "diagnosis": diagnoses,
    "batches": batches,
    "packs": packs,
}
