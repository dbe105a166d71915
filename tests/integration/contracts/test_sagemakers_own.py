"""SageMaker's own packages read what a script gets, and agree with it name by name.

`sagemaker-training` is what SDK 2's containers run, `sagemaker-train` brings what SDK 3's do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from headrace.core.process.mount_namespace import namespace_command
from headrace.platforms.instance_groups import HostGroup
from headrace.platforms.sagemaker import (
    SageMakerFolders,
    SageMakerTree,
    sagemaker_arguments,
    sagemaker_v3_arguments,
    sagemaker_v3_variables,
    sagemaker_variables,
)
from headrace.platforms.training_job import Channel, Distribution, HostResources, TrainingJob
from jobs import clean_environment

HYPERPARAMETERS = {
    "batch-size": 256, "lr": 0.1, "name": "über 'quoted'", "amp": True, "none": None, "n": "12",
    "augment": {"flip": 0.5, "crop": [224, 224]}, "layers": [1, 2], "x": -1,
}  # fmt: skip
GPU = HostGroup(name="gpu", hosts=("algo-1", "algo-2"), instance_type="ml.g5.xlarge")
CPU = HostGroup(name="cpu", hosts=("algo-3",), instance_type="ml.c5.4xlarge")
ONE = HostGroup(name="homogeneousCluster", hosts=("algo-1",), instance_type="ml.g5.xlarge")
CHANNELS = (
    Channel(name="train", content_type="image/jpeg"),
    Channel(name="validation", mode="Pipe", distribution="ShardedByS3Key"),
    Channel(name="raw", groups=("cpu",)),
)
# Its packages read the environment as they are imported: those of each host in a process of its
# own, which has already what they import.
ENVIRONMENT = """
import json, os, sys
import sagemaker_training.environment
for name in [name for name in sys.modules if name.partition(".")[0] == "sagemaker_training"]:
    del sys.modules[name]
for variables in json.load(sys.stdin):
    if os.fork() == 0:
        os.environ.update(variables)
        from sagemaker_training.environment import Environment
        environment = Environment()
        found = {"attributes": dict(environment), "variables": environment.to_env_vars(),
                 "arguments": environment.to_cmd_args()}
        print("FOUND", json.dumps(found), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
# What the toolkit counts on this machine, or only says of the machine.
OF_THE_MACHINE = {"num_cpus", "num_gpus", "num_neurons"}


def job_of(
    *groups: HostGroup,
    distributed: tuple[str, ...] = (),
    by: Distribution = "torch_distributed",
    processes: int | None = None,
) -> TrainingJob:
    return TrainingJob(
        name="a-job",
        groups=groups,
        entry_point="train.py",
        distribution=by if distributed else None,
        distributed=distributed,
        processes_per_host=processes,
        channels=CHANNELS if len(groups) > 1 else CHANNELS[:2],
        hyperparameters=HYPERPARAMETERS,
        submitted="/code",
        region="eu-west-1",
    )


JOBS = {
    "one group": job_of(ONE),
    "one group, distributed": job_of(ONE, distributed=("homogeneousCluster",)),
    "two ranks a host": job_of(ONE, distributed=("homogeneousCluster",), by="mpi", processes=2),
    "two groups": job_of(GPU, CPU, distributed=("gpu",)),
    "two groups, none distributed": job_of(CPU, GPU),
}
HOSTS = [(name, host) for name, job in JOBS.items() for host in job.hosts]


def laid_out(job: TrainingJob, host: str, machine: HostResources, folder: Path) -> SageMakerTree:
    tree = SageMakerTree(folder / "ml")
    places = {channel.name: folder for channel in job.channels}
    tree.lay_out(job, host, machine, code=folder, channels=places)
    return tree


@pytest.fixture(scope="module")
def by_host(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Any]]:
    """What each host's script is to have as its variables, and what the toolkit reads there."""
    machine = HostResources(cpus=4, gpus=1)
    ours = []
    for name, host in HOSTS:
        tree = laid_out(JOBS[name], host, machine, tmp_path_factory.mktemp("host"))
        ours.append(sagemaker_variables(JOBS[name], host, tree.folders, machine))
    ended = subprocess.run(
        [sys.executable, "-c", ENVIRONMENT],
        input=json.dumps(ours),
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("FOUND ")]
    found = [json.loads(line.removeprefix("FOUND ")) for line in lines]
    return dict(zip(HOSTS, zip(ours, found, strict=True), strict=True))


@pytest.mark.parametrize(("name", "host"), HOSTS)
def test_the_toolkits_environment_is_what_the_script_gets(
    name: str, host: str, by_host: dict[tuple[str, str], tuple[Any, Any]]
) -> None:
    variables, toolkit = by_host[name, host]
    ours = json.loads(variables["SM_TRAINING_ENV"])
    assert ours.keys() == toolkit["attributes"].keys()
    for attribute in ours.keys() - OF_THE_MACHINE:
        assert ours[attribute] == toolkit["attributes"][attribute], attribute
    counted = {f"SM_{each.upper()}" for each in OF_THE_MACHINE} | {"SM_TRAINING_ENV"}
    assert len(toolkit["variables"]) > 35
    for variable, value in toolkit["variables"].items():
        assert variable in counted or variables[variable] == value, variable
    assert toolkit["arguments"] == sagemaker_arguments(HYPERPARAMETERS)


@pytest.mark.parametrize("host", JOBS["two groups"].hosts)
def test_what_sdk_3s_container_exports_is_what_the_script_gets(host: str, tmp_path: Path) -> None:
    job, machine = JOBS["two groups"], HostResources(cpus=4, gpus=1, interface="lo")
    tree = laid_out(job, host, machine, tmp_path)
    variables = sagemaker_v3_variables(job, host, SageMakerFolders(), machine)
    (own,) = [
        Path(str(file.locate()))
        for file in metadata.files("sagemaker-train") or ()
        if str(file).endswith("scripts/environment.py")
    ]
    command = namespace_command(
        sys.executable, {"/opt/ml": tree.folders.base}, [sys.executable, own]
    )
    subprocess.run(
        [str(part) for part in command],
        env=clean_environment(TRAINING_JOB_NAME=job.name),
        capture_output=True,
        check=True,
    )
    exported = _exported(Path(tree.folders.input) / "sm_training.env")
    assert len(exported) > 30
    of_machine = {f"SM_{name.upper()}" for name in OF_THE_MACHINE}
    # That one names the hyperparameters of the SDK, too, which are ours of SDK 2.
    hps = json.loads(exported.pop("SM_HPS"))
    assert {name: hps[name] for name in HYPERPARAMETERS} == json.loads(variables["SM_HPS"])
    for name, value in exported.items():
        if name in of_machine or name.startswith("SM_HP_SAGEMAKER_") or name == "SM_TRAINING_ENV":
            continue
        assert variables[name] == value, name
    inner, ours = json.loads(exported["SM_TRAINING_ENV"]), json.loads(variables["SM_TRAINING_ENV"])
    assert inner.keys() == ours.keys()


def test_sdk_3s_arguments_are_those_of_its_drivers(tmp_path: Path) -> None:
    (utilities,) = [
        Path(str(file.locate()))
        for file in metadata.files("sagemaker-train") or ()
        if str(file).endswith("train/container_drivers/common/utils.py")
    ]
    asked = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import utils; "
        "print(json.dumps(utils.hyperparameters_to_cli_args(json.loads(sys.argv[2]))))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", asked, str(utilities.parent), json.dumps(HYPERPARAMETERS)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ended.stdout) == sagemaker_v3_arguments(HYPERPARAMETERS)


def _exported(file: Path) -> dict[str, str]:
    """What a shell would export: each line is NAME='VALUE', quotes inside and all."""
    found = {}
    for line in file.read_text().splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        found[name] = value.removeprefix("'").removesuffix("'")
    return found
