"""What contracts give scripts: read back, it is the job; each variable is what facts say.

SageMaker's own packages read it too: tests/integration/contracts.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.platforms.cluster_hosts import ClusterHostFlags, find_cluster_hosts
from headrace.platforms.instance_groups import HostGroup
from headrace.platforms.sagemaker import (
    SageMakerFolders,
    check_hyperparameters,
    hyperparameters_file,
    resource_config,
    sagemaker_arguments,
    sagemaker_v3_arguments,
    sagemaker_v3_variables,
    sagemaker_variables,
)
from headrace.platforms.script_contract import script_arguments
from headrace.platforms.training_job import Channel, HostResources, TrainingJob
from headrace.platforms.vertex import (
    VertexPaths,
    experiment_variables,
    vertex_variables,
    worker_pools,
)

MACHINE = HostResources(cpus=96, gpus=8)
FOLDERS = SageMakerFolders()
NAMES = ["gpu", "cpu", "data_group", "dnn_group"]
HYPERPARAMETERS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner),
        max_leaves=5,
    ),
    max_size=4,
)  # fmt: skip


def groups_of(sizes: list[int]) -> tuple[HostGroup, ...]:
    """Groups with so many hosts each: algo-1, algo-2, ..."""
    groups, first = [], 1
    for name, size in zip(NAMES, sizes, strict=False):
        hosts = tuple(f"algo-{number}" for number in range(first, first + size))
        groups.append(HostGroup(name=name, hosts=hosts, instance_type=f"ml.{name}.xlarge"))
        first += size
    return tuple(groups)


JOBS = st.builds(
    lambda sizes, trains, hyperparameters: TrainingJob(
        name="a-job",
        groups=groups_of(sizes),
        entry_point="train.py",
        distribution="torch_distributed",
        distributed=(NAMES[trains % len(sizes)],),
        channels=(Channel(name="train"), Channel(name="validation", mode="Pipe")),
        hyperparameters=hyperparameters,
    ),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(0, 3),
    HYPERPARAMETERS,
)


@given(JOBS, st.integers(0, 47))
def test_what_a_host_on_sagemaker_gets_is_read_back_as_the_job(job, number) -> None:
    host = job.hosts[number % len(job.hosts)]
    variables = dict(sagemaker_variables(job, host, FOLDERS, MACHINE))
    config = json.dumps(resource_config(job, host, MACHINE))
    found = find_cluster_hosts(variables, config, ClusterHostFlags(), lambda _: None)
    assert set(found.hosts) == set(job.hosts)
    assert found.here == host
    assert found.head == job.master
    assert found.group == job.group_of(host).name
    assert {group.name: group.hosts for group in found.groups} == {
        group.name: len(group.hosts) for group in job.groups
    }
    assert found.groups[0].name == job.distributed[0]


@given(JOBS, st.integers(0, 47))
def test_the_file_alone_names_the_hosts(job, number) -> None:
    host = job.hosts[number % len(job.hosts)]
    config = json.dumps(resource_config(job, host, MACHINE))
    flags = ClusterHostFlags(training=job.distributed[0])
    found = find_cluster_hosts({}, config, flags, lambda _: None)
    assert (found.here, found.head) == (host, job.master)


@given(JOBS, st.integers(0, 47))
def test_what_a_host_on_vertex_gets_is_read_back_as_the_job(job, number) -> None:
    host = job.hosts[number % len(job.hosts)]
    variables = dict(vertex_variables(job, host, VertexPaths(output="/out", data={})))
    found = find_cluster_hosts(variables, None, ClusterHostFlags(), lambda _: None)
    assert set(found.hosts) == set(job.hosts)
    assert (found.here, found.head) == (host, job.master)
    assert variables["MASTER_ADDR"] == job.master
    assert int(variables["WORLD_SIZE"]) == len(job.hosts)


@given(JOBS)
def test_every_machine_has_a_rank_of_its_own_on_vertex(job) -> None:
    places = VertexPaths(output="/out", data={})
    ranks = [int(vertex_variables(job, host, places)["RANK"]) for host in job.hosts]
    assert sorted(ranks) == list(range(len(job.hosts)))
    assert ranks[job.hosts.index(job.master)] == 0
    assert len(worker_pools(job)["workerpool0"]) == 1


@given(HYPERPARAMETERS)
def test_hyperparameters_are_read_back_from_the_file_as_they_were(values) -> None:
    check_hyperparameters(values)
    job = TrainingJob(
        name="j", groups=groups_of([1]), entry_point="train.py", hyperparameters=values
    )
    file = hyperparameters_file(job)
    assert all(isinstance(text, str) for text in file.values())
    read = {name: json.loads(text) for name, text in file.items()}
    assert {name: value for name, value in read.items() if name in values} == values


# A job of two GPU hosts and one CPU host, as facts of SageMaker's documentation describe it.
HETERO = TrainingJob(
    name="job-1",
    groups=(
        HostGroup(name="dnn_group", hosts=("algo-1", "algo-2"), instance_type="ml.p4d.24xlarge"),
        HostGroup(name="data_group", hosts=("algo-3",), instance_type="ml.c5.18xlarge"),
    ),
    entry_point="train.py",
    distribution="torch_distributed",
    distributed=("dnn_group",),
    channels=(Channel(name="train"), Channel(name="validation")),
    hyperparameters={"batch-size": 256},
    submitted="s3://bucket/sourcedir.tar.gz",
)


def test_the_variables_of_a_heterogeneous_job_are_those_of_sdk_2() -> None:
    variables = sagemaker_variables(HETERO, "algo-1", FOLDERS, MACHINE)
    expected = {
        "SM_HOSTS": '["algo-1","algo-2","algo-3"]',
        "SM_CURRENT_HOST": "algo-1",
        "SM_NUM_GPUS": "8",
        "SM_NUM_CPUS": "96",
        "SM_NUM_NEURONS": "0",
        "SM_MODEL_DIR": "/opt/ml/model",
        "SM_OUTPUT_DIR": "/opt/ml/output",
        "SM_OUTPUT_DATA_DIR": "/opt/ml/output/data",
        "SM_OUTPUT_INTERMEDIATE_DIR": "/opt/ml/output/intermediate",
        "SM_INPUT_DIR": "/opt/ml/input",
        "SM_INPUT_CONFIG_DIR": "/opt/ml/input/config",
        "SM_CHANNELS": '["train","validation"]',
        "SM_CHANNEL_TRAIN": "/opt/ml/input/data/train",
        "SM_HPS": '{"batch-size":256}',
        "SM_HP_BATCH-SIZE": "256",
        "SM_HP_BATCH_SIZE": "256",  # SDK 3's spelling
        "SM_USER_ARGS": '["--batch-size","256"]',
        "SM_USER_ENTRY_POINT": "train.py",
        "SM_MODULE_NAME": "train",
        "SM_MODULE_DIR": "s3://bucket/sourcedir.tar.gz",
        "SM_FRAMEWORK_MODULE": "sagemaker_pytorch_container.training:main",
        "SM_LOG_LEVEL": "20",
        "SM_NETWORK_INTERFACE_NAME": "eth0",
        "SM_CURRENT_INSTANCE_TYPE": "ml.p4d.24xlarge",
        "SM_CURRENT_INSTANCE_GROUP": "dnn_group",
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-1","algo-2"]',
        "SM_INSTANCE_GROUPS": '["dnn_group","data_group"]',
        "SM_DISTRIBUTION_INSTANCE_GROUPS": '["dnn_group"]',
        "SM_IS_HETERO": "true",
        "SM_MASTER_ADDR": "algo-1",
        "SM_MASTER_PORT": "7777",
        "SM_HOST_COUNT": "3",
        "SM_CURRENT_HOST_RANK": "0",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
        "TRAINING_JOB_NAME": "job-1",
        "SAGEMAKER_JOB_NAME": "job-1",
        "CURRENT_HOST": "algo-1",
    }
    assert {name: variables.get(name) for name in expected} == expected
    group = json.loads(variables["SM_INSTANCE_GROUPS_DICT"])["dnn_group"]
    assert group == {
        "hosts": ["algo-1", "algo-2"],
        "instance_group_name": "dnn_group",
        "instance_type": "ml.p4d.24xlarge",
    }
    assert "NCCL_IB_DISABLE" not in variables  # it cripples InfiniBand


def test_sdk_3_has_no_groups_and_json_with_spaces() -> None:
    variables = sagemaker_v3_variables(HETERO, "algo-2", FOLDERS, MACHINE)
    assert variables["SM_HOSTS"] == '["algo-1", "algo-2", "algo-3"]'
    assert variables["SM_CURRENT_HOST_RANK"] == "1"
    assert variables["SM_HP_BATCH_SIZE"] == "256"
    gone = ("GROUP", "USER_ARGS", "MODULE", "FRAMEWORK", "INTERMEDIATE", "HP_BATCH-SIZE")
    assert not [name for name in variables if any(part in name for part in gone)]


@pytest.mark.parametrize(
    ("distribution", "asked", "parameters", "config"),
    [
        ("mpi", 2,
         {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2},
         {"process_count_per_node": 2, "mpi_additional_options": None}),
        ("mpi", None, {"sagemaker_mpi_enabled": True},
         {"process_count_per_node": None, "mpi_additional_options": None}),
        # SDK 2 has a number for MPI alone: the toolkit counts devices for the others.
        ("torch_distributed", 2, {"sagemaker_torch_distributed_enabled": True},
         {"process_count_per_node": 2, "smp": None}),
        ("torch_distributed", None, {"sagemaker_torch_distributed_enabled": True},
         {"process_count_per_node": None, "smp": None}),
    ],
)  # fmt: skip
def test_the_ranks_that_a_host_was_asked_to_have_are_passed_on(
    distribution, asked, parameters, config
) -> None:
    job = TrainingJob(
        name="j", groups=groups_of([1]), entry_point="train.py", distribution=distribution,
        distributed=("gpu",), processes_per_host=asked,
    )  # fmt: skip
    variables = sagemaker_variables(job, "algo-1", FOLDERS, MACHINE)
    assert json.loads(variables["SM_FRAMEWORK_PARAMS"]) == parameters
    assert json.loads(variables["SM_DISTRIBUTED_CONFIG"]) == config


def test_the_two_dialects_of_arguments() -> None:
    values = {"lr": 0.1, "b": True, "nothing": None, "augment": {"flip": 1, "crop": 2}, "a": "x"}
    assert sagemaker_arguments(values) == [
        "-a", "x", "--augment", "crop=2,flip=1", "-b", "True", "--lr", "0.1", "--nothing", "",
    ]  # fmt: skip
    assert sagemaker_v3_arguments(values) == [
        "--lr", "0.1", "--b", "true", "--nothing", "null", "--augment", '{"flip": 1, "crop": 2}',
        "--a", "x",
    ]  # fmt: skip


@given(HYPERPARAMETERS)
def test_without_a_contract_a_text_reaches_the_script_as_it_was_typed(values) -> None:
    typed = {"version": "1.10", "commit": "4827e93", "id": "1e400", "day": "007", "none": "null"}
    for contracts in ((), ("torchrun",)):
        words = script_arguments(contracts, {**values, **typed})
        read = dict(zip(words[::2], words[1::2], strict=True))
        for name, value in {**values, **typed}.items():
            text = read[f"--{name}"]
            assert text == value if isinstance(value, str) else json.loads(text) == value
    assert script_arguments(("sagemaker-v3",), typed)[1] == "1.1"  # as its SDK passes it on


def test_ten_hosts_are_in_the_order_of_their_numbers() -> None:
    job = TrainingJob(name="j", groups=groups_of([11]), entry_point="train.py")
    assert resource_config(job, "algo-11", MACHINE)["hosts"] == list(job.hosts)


def test_pools_are_the_primary_the_workers_and_what_does_not_train() -> None:
    variables = vertex_variables(HETERO, "algo-3", VertexPaths(output="/out/", data={}))
    spec = json.loads(variables["CLUSTER_SPEC"])
    assert spec["cluster"] == {
        "workerpool0": ["algo-1:2222"],
        "workerpool1": ["algo-2:2222"],
        "workerpool2": ["algo-3:2222"],
    }
    assert spec["task"] == {"type": "workerpool2", "index": 0}
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "ps", "index": 0}
    assert variables["AIP_MODEL_DIR"] == "/out/model/"
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["MASTER_PORT"]) == (
        "2",
        "3",
        "3333",
    )


def test_one_machine_alone_has_no_tf_config() -> None:
    job = TrainingJob(
        name="j", groups=groups_of([1]), entry_point="train.py", channels=(Channel(name="train"),)
    )
    places = VertexPaths(output="gs://b/run", data={"train": "gs://b/data"})
    variables = vertex_variables(job, "algo-1", places)
    assert "TF_CONFIG" not in variables
    assert variables["AIP_TRAINING_DATA_URI"] == "gs://b/data"
    assert variables["AIP_CHECKPOINT_DIR"] == "gs://b/run/checkpoints/"


# facts: what of section 5c belongs to features of Vertex AI that a job here does not use.
NOT_HERE = {
    "AIP_EXPERIMENT_NAME", "AIP_EXPERIMENT_RUN_NAME", "AIP_TENSORBOARD_RESOURCE_NAME",
    "AIP_TENSORBOARD_API_URI", "AIP_TF_PROFILER_PORT", "AIP_HTTP_HANDLER_PORT",
}  # fmt: skip


def test_project_and_region_are_passed_on_vertex_and_no_feature_that_is_not_used() -> None:
    places = VertexPaths(output="/out", data={}, project="p-1", region="europe-west4")
    variables = vertex_variables(HETERO, "algo-1", places)
    assert variables["CLOUD_ML_PROJECT_ID"] == "p-1"
    assert variables["CLOUD_ML_REGION"] == "europe-west4"
    assert not NOT_HERE & variables.keys()
    assert "trial" not in json.loads(variables["CLUSTER_SPEC"])["task"]
    assert "AIP_DATA_FORMAT" not in variables  # HETERO's channels are nowhere: no data, no format


def test_an_experiment_is_passed_on_and_its_run_where_it_has_one() -> None:
    assert experiment_variables("exp-1", None) == {"AIP_EXPERIMENT_NAME": "exp-1"}
    assert experiment_variables("exp-1", "run-1") == {
        "AIP_EXPERIMENT_NAME": "exp-1", "AIP_EXPERIMENT_RUN_NAME": "run-1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "places", "data_format"),
    [
        ((None, None), ("/images", "/more"), "jsonl"),
        (("text/csv", "text/csv; charset=utf-8"), ("/a", "/b"), "csv"),
        ((None, None), ("gs://b/train.csv", "gs://b/val.csv"), "csv"),
        (("text/csv", None), ("/a", "/images"), "jsonl"),  # one format is given for all
        (("application/jsonlines", "text/csv"), ("/a.csv", "/b"), "jsonl"),
    ],
)
def test_tables_are_csv_on_vertex_and_all_else_jsonl(kinds, places, data_format) -> None:
    names = ("training", "validation")
    job = TrainingJob(
        name="j", groups=groups_of([1]), entry_point="train.py",
        channels=tuple(
            Channel(name=name, content_type=kind) for name, kind in zip(names, kinds, strict=True)
        ),
    )  # fmt: skip
    data = dict(zip(names, places, strict=True))
    found = vertex_variables(job, "algo-1", VertexPaths(output="/out", data=data))
    assert found["AIP_DATA_FORMAT"] == data_format


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"net": object()}, "hyperparameter net: JSON cannot hold a value of type object"),
        ({"lr": float("nan")}, "hyperparameter lr: JSON cannot hold nan"),
        ({"sagemaker_program": "x"}, "are SageMaker's own"),
        ({"": 1}, "its name is a text"),
        ({"a": "\0"}, "zero byte"),
    ],
)
def test_hyperparameters_that_cannot_be_passed_are_refused(values, message) -> None:
    with pytest.raises(UsageError, match=message):
        check_hyperparameters(values)


def test_a_channel_or_a_distribution_for_no_group_is_refused() -> None:
    with pytest.raises(UsageError, match="Channel train is for the instance group cpus"):
        TrainingJob(
            name="j",
            groups=groups_of([1]),
            entry_point="train.py",
            channels=(Channel(name="train", groups=("cpus",)),),
        )
    with pytest.raises(UsageError, match="The distribution is for the instance group dnn"):
        TrainingJob(name="j", groups=groups_of([1]), entry_point="t.py", distributed=("dnn",))
