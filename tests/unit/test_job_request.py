"""What an Estimator is asked for: the flags it becomes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import Estimator
from headrace.core import env
from headrace.core.errors import UsageError
from headrace.jobs.cli_args import check_script
from headrace.jobs.job_file import with_job_file
from headrace.jobs.job_request import JobRequest, request_job
from headrace.jobs.sagemaker_sdk.inputs import named_inputs
from headrace.sagemaker import FileSystemInput, InstanceGroup, ProfilerConfig, TrainingInput

TORCH = {"torch_distributed": {"enabled": True}}
GPU = InstanceGroup("gpu", "ml.g5.xlarge", 1)
CPU = InstanceGroup("cpu", "ml.c5.4xlarge", 2)


def request(inputs: Any = None, **asked: Any) -> JobRequest:
    given = {"entry_point": "train.py", **asked}
    return request_job(given, named_inputs(inputs, "Estimator: "), "Estimator: ")


def flags(inputs: Any = None, **asked: Any) -> list[str]:
    return request(inputs, **asked).flags()


def test_a_script_alone_runs_on_this_host_under_sagemakers_contract():
    assert flags() == ["--contract=sagemaker"]


def test_everything_that_is_asked_for_becomes_a_flag():
    assert flags(
        {"train": "s3://b/train"},
        source_dir="src", hyperparameters={"batch-size": 256, "name": "12", "kind": "b/16"},
        instance_count=4, instance_type="ml.p3.16xlarge",
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
        environment={"LEVEL": "3"}, dependencies=["lib"], max_run=7200, max_restarts=2,
        metric_definitions=[{"Name": "loss", "Regex": r"loss=([0-9.]+)"}],
        checkpoint_s3_uri="s3://b/checkpoints", output_path="s3://b/output", input_mode="FastFile",
        profiler_config=ProfilerConfig(system_monitor_interval_millis=250),
    ) == [
        "--environment=LEVEL=3", "--dependency=lib", "--max-run=7200", "--contract=sagemaker",
        "--channel=train=s3://b/train", "--hyperparameter=batch-size=256",
        '--hyperparameter=name="12"', "--hyperparameter=kind=b/16", "--source-dir=src",
        "--distribution=smdistributed", "--input-mode=train=FastFile",
        "--profile-interval=250ms", r"--metric=loss=loss=([0-9.]+)",
        "--group=homogeneousCluster=4xml.p3.16xlarge", "--checkpoint-uri=s3://b/checkpoints",
        "--output-path=s3://b/output", "--max-restarts=2",
    ]  # fmt: skip


def test_a_cluster_of_ray_and_a_group_that_makes_batches():
    asked = flags(
        engine="ray", address="head:6379", instance_groups=[GPU, CPU], offload="cpu",
        distribution={"mpi": {"enabled": True, "processes_per_host": 2}}, contract="vertex",
    )  # fmt: skip
    assert asked == [
        "--contract=vertex", "--distribution=mpi", "--engine=ray", "--group=gpu=1xml.g5.xlarge",
        "--group=cpu=2xml.c5.4xlarge", "--address=head:6379", "--offload=cpu",
        "--nproc-per-node=2",
    ]  # fmt: skip
    assert flags(engine="ray", instance_count=2)[-1] == "--group=gpu=2xlocal"


@pytest.mark.parametrize(
    ("config", "variables"),
    [
        ({"ExperimentName": "exp-1"}, ["--environment=AIP_EXPERIMENT_NAME=exp-1"]),
        ({"ExperimentName": "exp-1", "TrialName": "t", "RunName": "run-1"},
         ["--environment=AIP_EXPERIMENT_NAME=exp-1",
          "--environment=AIP_EXPERIMENT_RUN_NAME=run-1"]),
        ({"TrialComponentDisplayName": "x"}, []),
    ],
)  # fmt: skip
def test_a_script_of_vertexs_gets_its_experiment(config: dict[str, str], variables: list[str]):
    for contract, expected in (("vertex", variables), ("sagemaker", [])):
        given = {"entry_point": "t.py", "contract": contract}
        flags = request_job(given, {}, "Estimator: ", experiment_config=config).flags()
        assert [flag for flag in flags if "AIP_" in flag] == expected


@pytest.mark.parametrize(
    "asked",
    [
        {"environment": {"HF_TOKEN": "canary one", "N": 1}},
        {"environment": ["HF_TOKEN=canary one"]},
        {"hyperparameters": [("api_key", "canary one")]},
        {"hyperparameters": "--api_key 'canary one'"},
        {"args": {"--api-key": "canary one"}},
        {"distribution": {"mpi": ["-x", "API_KEY=canary one"]}},
        {"metric_definitions": [{"api_key": "canary one"}]},
        {"instance_groups": [("api_key", "canary one")]},
        {"requirements": ["x @ https://user:canary@host/one"]},
        {"experiment_config": {"TrialName": 5, "password": "canary one"}},
    ],
)
def test_no_secret_of_a_wrong_value_is_shown(asked: dict[str, Any]):
    config = asked.pop("experiment_config", None)
    given = {"entry_point": "train.py", **asked}
    with pytest.raises(UsageError) as raised:
        request_job(given, {}, "Estimator: ", experiment_config=config)
    assert "***" in str(raised.value) or "https://host" in str(raised.value)
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("named", ["gpu", GPU])
def test_the_group_that_trains_comes_first(named: Any):
    lowered = flags(instance_groups=[CPU, GPU], distribution={**TORCH, "instance_groups": [named]})
    assert lowered[-2:] == ["--group=gpu=1xml.g5.xlarge", "--group=cpu=2xml.c5.4xlarge"]
    # Nobody names it: the one that has devices.
    assert flags(instance_groups=[CPU, GPU], distribution=TORCH)[-2:] == lowered[-2:]


def test_what_a_run_records_describes_the_same_job():
    asked = {
        "instance_groups": [CPU, GPU],
        "distribution": {**TORCH, "instance_groups": [GPU]},
        "cache_dir": FileSystemInput("fs-1", "EFS", "cache", "rw"),
        "max_restarts": 1,
    }
    first = request({"train": TrainingInput("images", instance_groups=["gpu"])}, **asked)
    recorded = json.loads(first.arguments_json())
    again = request(recorded.pop("inputs"), **recorded)
    assert again.flags() == first.flags()
    assert json.loads(again.arguments_json()) == json.loads(first.arguments_json())


@pytest.mark.parametrize(
    ("distribution", "flag", "note"),
    [  # each is one that SageMaker's SDK 2 takes
        ({"torch_distributed": {"enabled": True}}, "--distribution=torch_distributed", None),
        (
            {"pytorchddp": {"enabled": True, "custom_mpi_options": "-verbose"}},
            "--distribution=pytorchddp",
            "custom_mpi_options have no effect",
        ),
        (
            {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-x A=1"}}},
            "--distribution=smdistributed",
            "variables are given by environment",
        ),
        (
            {"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": ""}},
            "--nproc-per-node=2",
            None,
        ),
        ({"parameter_server": {"enabled": True}}, None, "runs once on each host"),
        ({"mpi": {"enabled": False, "custom_mpi_options": "-v"}}, None, None),
        ({"torch_distributed": {}}, None, "starts no ranks"),
    ],
)
def test_each_distribution_of_sagemakers_is_taken_and_what_has_no_effect_is_reported(
    distribution: dict[str, Any], flag: str | None, note: str | None
):
    job = request(distribution=distribution)
    lowered = job.flags()
    assert any("distribution" in each for each in lowered) == (flag is not None)
    assert flag is None or flag in lowered
    assert [note in each for each in job.notes] == ([True] if note else [])


def test_secrets_reach_the_script_by_no_command_line_and_no_record():
    lowered = request(environment={"HF_TOKEN": "abc", "LEVEL": "3"})
    assert "--environment=HF_TOKEN" in lowered.flags()
    assert not any("abc" in flag for flag in lowered.flags())
    assert lowered.variables == {"HF_TOKEN": "abc"}


def test_inputs_with_more_to_say_become_json():
    lowered = flags(
        {
            "train": TrainingInput("s3://b/t", distribution="ShardedByS3Key", input_mode="Cache"),
            "labels": TrainingInput("s3://b/l", content_type="text/csv", instance_groups=["gpu"]),
            "fsx": FileSystemInput(
                file_system_id="fs-1", file_system_type="FSxLustre", directory_path="/fsx/",
                file_system_access_mode="ro",
            ),
        },
        input_mode="File", cache_dir="cache",
    )  # fmt: skip
    channels = dict(
        flag.removeprefix("--channel=").split("=", 1) for flag in lowered if "--channel" in flag
    )
    assert json.loads(channels["train"]) == {"uri": "s3://b/t", "distribution": "ShardedByS3Key"}
    assert json.loads(channels["labels"]) == {
        "uri": "s3://b/l", "groups": ["gpu"], "content_type": "text/csv",
    }  # fmt: skip
    assert channels["fsx"] == "/fsx/"
    modes = [flag for flag in lowered if "--input-mode" in flag]
    assert modes == ["--input-mode=train=Cache", "--input-mode=labels=File"]
    assert flags("s3://b/t")[-1] == "--channel=training=s3://b/t"  # as SageMaker names it


def test_a_path_for_checkpoints_that_the_contract_has_anyway_is_no_flag():
    assert flags(checkpoint_local_path="/opt/ml/checkpoints/") == ["--contract=sagemaker"]
    assert flags(checkpoint_local_path="/ck//a/")[-1] == "--checkpoint-local-path=/ck/a"


def test_mode_cache_is_reached_by_arguments_alone():
    fsx = FileSystemInput("fs-1", "FSxLustre", "/fsx/cache", "rw")
    for cache in ("/fsx/cache", fsx):
        lowered = flags(
            {"train": "s3://b/t"}, input_mode="Cache", cache_dir=cache, cache_limit="9GB"
        )
        assert lowered[-3:] == ["--input-mode=train=Cache", "--cache-dir=/fsx/cache",
                             "--cache-limit=9GB"]  # fmt: skip
    assert flags(cache_limit=10**9)[-1] == "--cache-limit=1000000000"
    with pytest.raises(UsageError, match=r'inputs: train: .* Name one: cache_dir="/fsx/cache"'):
        flags({"train": TrainingInput("s3://b/t", input_mode="Cache")})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"hyperparameter": {}}, "no argument hyperparameter. Did you mean hyperparameters?"),
        ({"instance_count": 0}, "instance_count: 0 is not a whole number, 1 or more"),
        ({"instance_count": True}, "instance_count: True is not a whole number"),
        ({"instance_type": "ml.p3.17xlarge"}, "Did you mean ml.p3.16xlarge?"),
        ({"instance_type": "n1-standard-9"}, "Did you mean n1-standard-"),
        ({"instance_type": "ml.n1-standard-8"}, "there is no instance type ml.n1-standard-8"),
        ({"hyperparameters": {"a": object()}}, "hyperparameter a: JSON cannot hold"),
        ({"environment": {"A": 1}}, "environment: .* texts by names"),
        ({"distribution": {"torch_distribute": {}}}, "Did you mean torch_distributed?"),
        ({"distribution": {"torch_distributed": True}}, "write it as"),
        ({"distribution": {"smdistributed": {"modelparallel": {}}}}, "there is dataparallel"),
        ({"distribution": {**TORCH, "mpi": {"enabled": True}}}, "enable one of them"),
        (
            {"instance_groups": [GPU], "distribution": {**TORCH, "instance_groups": ["gpus"]}},
            "Did you mean gpu?",
        ),
        ({"distribution": {"torch_distributed": {"enable": True}}}, "Did you mean enabled?"),
        (
            {"distribution": {"mpi": {"enabled": True, "process_per_host": 2}}},
            "Did you mean processes_per_host?",
        ),
        (
            {"distribution": {"smdistributed": {"dataparallel": {"enabeld": True}}}},
            "Did you mean enabled?",
        ),
        ({"distribution": {"mpi": {"enabled": True, "processes_per_host": True}}}, "True is not a"),
        ({"distribution": {"instance_group": ["gpu"]}}, "Did you mean instance_groups?"),
        ({"distribution": {**TORCH, "instance_groups": ["gpuu"]}}, "the job has no groups"),
        ({"distribution": {**TORCH, "instance_groups": []}}, "none: one group trains"),
        ({"distribution": {**TORCH, "instance_groups": "gpu"}}, 'write it as "instance_groups"'),
        ({"distribution": {**TORCH, "instance_groups": [5]}}, "5 is no group"),
        (
            {"instance_groups": [GPU], "distribution": {"instance_groups": ["gpu"]}},
            "nothing starts ranks in it",
        ),
        ({"distribution": {"pytorchxla": {"enabled": True}}}, 'Take "torch_distributed"'),
        ({"instance_groups": [GPU, GPU]}, "gpu comes twice"),
        ({"instance_groups": [GPU], "instance_count": 2}, "give one of them"),
        ({"instance_groups": [{"name": "a", "typ": "local"}]}, "no typ. Did you mean type?"),
        (
            {
                "instance_groups": [GPU, InstanceGroup("b", "ml.g5.xlarge", 1)],
                "distribution": TORCH,
            },
            "which of the groups gpu, b trains",
        ),
        ({"max_run": "1 week"}, "max_run: '1 week' is no time"),
        ({"metric_definitions": [{"Name": "a", "Regex": "("}]}, "no regular expression"),
        ({"metric_definitions": [{"Name": "a", "Regex": "a"}]}, "has 0 groups"),
        ({"metric_definitions": [{"Name": "a"}]}, "write each as"),
        ({"engine": "rays"}, "engine rays: it is one of local, ray. Did you mean ray?"),
        ({"address": "auto"}, 'add engine="ray"'),
        ({"checkpoint_local_path": "checkpoints"}, "it begins with /"),
        ({"checkpoint_local_path": "/opt/ml/model/c"}, "the contract has other things there"),
        ({"checkpoint_local_path": "/opt"}, "the contract has other things there"),
        ({"checkpoint_local_path": "/c", "contract": "vertex"}, "it is SageMaker's"),
        ({"cache_dir": 5}, "cache_dir: 5 is not a text, or a FileSystemInput"),
        (
            {"cache_dir": FileSystemInput("fs-1", "EFS", "/efs")},
            'say file_system_access_mode="rw"',
        ),
        ({"cache_limit": "a lot"}, "Estimator: cache_limit: "),
        ({"cache_limit": 0}, "Estimator: cache_limit 0: a cache that holds nothing"),
        ({"input_mode": "Fastfile"}, "Did you mean FastFile?"),
        ({"checkpoint_uri": "a", "checkpoint_s3_uri": "a"}, "mean the same"),
        ({"profiler_config": 5}, "is not a ProfilerConfig"),
        ({"contract": [5]}, r"contract: \[5\] is not a text, or a list of them"),
        ({"contract": {"a": "b"}}, "contract: .* is not a text, or a list of them"),
        ({"dependencies": [5]}, r"dependencies: \[5\] is not a list of texts"),
        ({"dependencies": {"a": "b"}}, "dependencies: .* is not a list of texts"),
        ({"environment": {"A=B": "c"}}, "environment: 'A=B': a variable's name has letters"),
        ({"environment": {"": "c"}}, "environment: '': a variable's name has letters"),
    ],
)
def test_wrong_values_are_refused_with_what_can_be(asked: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=f"(?s){message}"):
        Estimator("train.py", **asked)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a\0b", "zero byte"),
        ("a\ud800b", "half of a character"),
        ("x" * 140_000, "bytes, and an argument or variable 131,072 at most"),
    ],
)
def test_texts_that_no_process_can_get_are_refused(text: str, why: str):
    for asked in (
        {"entry_point": text},
        {"job_name": text},
        {"source_dir": text},
        {"environment": {"A": text}},
        {"environment": {"HF_TOKEN": text}},
        {"hyperparameters": {"a": text}},
        {"hyperparameters": {"a": [{"b": text}]}},
        {"metric_definitions": [{"Name": "a", "Regex": f"({text})"}]},
    ):
        with pytest.raises(UsageError, match=why):
            flags(**asked)
        with pytest.raises(UsageError, match=why):
            Estimator(**{"entry_point": "train.py", **asked})
    with pytest.raises(UsageError, match="all arguments as one text: it takes"):
        flags(tags=["x" * 70_000, "x" * 70_000])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.yaml",
            "entry_point: a.py\nentry_point: b.py",
            "has the key entry_point twice",
        ),
        ("a.yaml", "hyperparameters: {b: 1, a: 2, b: 1}", r"the key b twice \(at line 1"),
        ("a.yaml", "hyperparameters: {day: 2024-02-30}", "a date that is none"),
        ("a.yaml", "hyperparameters: {day: !!timestamp x}", "a date that is none"),
        ("a.yaml", "hyperparameters: {n: !!int x}", "a number that is none or too long"),
        ("a.yaml", f"hyperparameters: {{n: {'1' * 5000}}}", "a number that is none or too long"),
        ("a.toml", f"hyperparameters = {{n = {'1' * 5000}}}", "a number that is none or too long"),
        ("a.yaml", "a: " + "[" * 3000, "too deep within each other"),
        ("a.toml", "a = " + "[" * 3000, "too deep within each other"),
        ("a.toml", "\ufeffentry_pont = 'train.py'", "there is no argument entry_pont"),
    ],
)
def test_job_files_that_cannot_be_are_refused(tmp_path: Path, name: str, text: str, message: str):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        with_job_file([str(file)])


def test_a_job_file_of_yaml_may_merge_keys(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "entry_point: train.py\n"
        "instance_groups:\n"
        "- &one {name: a, type: ml.g5.xlarge, count: 1}\n"
        "- {<<: *one, name: b, type: ml.c5.xlarge}\n"
    )
    groups = [each for each in with_job_file([str(file)]) if each.startswith("--group")]
    env.change({env.JOB_REQUEST.name: None})
    assert groups == ["--group=a=1xml.g5.xlarge", "--group=b=1xml.c5.xlarge"]


@pytest.mark.parametrize("config", ["x", {"ExperimentName": 5}, [1]])
@pytest.mark.parametrize("contract", ["sagemaker", "vertex"])
def test_an_experiment_has_texts_by_names(config: Any, contract: str):
    with pytest.raises(UsageError, match=r"experiment_config: .* is not texts by names"):
        request_job(
            {"entry_point": "train.py", "contract": contract}, {}, "Estimator: ",
            experiment_config=config,
        )  # fmt: skip


def test_json_is_no_script(tmp_path: Path):
    file = tmp_path / "job.json"
    file.write_text('{"entry_point": "train.py"}')  # which Python would run, and do nothing
    with pytest.raises(UsageError, match=r"name it .*job\.yaml"):
        check_script(str(file))


def test_inputs_that_cannot_be_are_refused():
    for wrong in (5, {"train": 5}, {"a=b": "x"}):
        with pytest.raises(UsageError, match="inputs"):
            flags(wrong)
    with pytest.raises(UsageError, match=r"Did you mean ShardedByS3Key\?"):
        TrainingInput("s3://b", distribution="ShardedByS3key")
    with pytest.raises(UsageError, match="files reach the script as they are"):
        TrainingInput("s3://b", compression="Gzip")
    with pytest.raises(UsageError, match="from 100 to 60000"):
        ProfilerConfig(system_monitor_interval_millis=50)
    with pytest.raises(UsageError, match="a group has one or more"):
        InstanceGroup("a", "local", 0)


def test_groups_by_sagemakers_words():
    group = InstanceGroup(instance_group_name="gpu", instance_type="ml.g5.xlarge", instance_count=1)
    assert group == GPU
    assert (group.instance_group_name, group.instance_type, group.instance_count) == (
        "gpu", "ml.g5.xlarge", 1,
    )  # fmt: skip
    assert (CPU.group().cpus, CPU.group().gpus) == (16, 0)


def test_what_is_installed_is_compared_with_what_was_asked_for():
    import platform
    from importlib import metadata

    torch = metadata.version("torch").split("+")[0]
    python = "".join(platform.python_version_tuple()[:2])
    fits = request(framework_version=torch, py_version=f"py{python}")
    assert fits.notes == ()
    assert request(framework_version=torch.rpartition(".")[0]).notes == ()
    assert request(py_version="py3").notes == ()  # of the SDK's older images
    differs = request(framework_version="1.8.1", py_version="py36")
    assert [note.split(" is asked")[0] for note in differs.notes] == [
        "framework_version 1.8.1", "py_version py36",
    ]  # fmt: skip
