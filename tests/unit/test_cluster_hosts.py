"""Which hosts a job has, as SageMaker, Vertex AI or a command line name them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.core.errors import UsageError
from headrace.platforms.cluster_hosts import ClusterHostFlags, ClusterHosts, find_cluster_hosts
from headrace.platforms.instance_groups import GroupSpec

GROUPS = {
    "dnn": {"hosts": ["algo-2", "algo-3"], "instance_group_name": "dnn", "instance_type": "ml.g5"},
    "data": {"hosts": ["algo-1"], "instance_group_name": "data", "instance_type": "ml.c5"},
}
SDK_2 = {
    "SM_HOSTS": '["algo-1","algo-2","algo-3"]',
    "SM_CURRENT_HOST": "algo-3",
    "SM_CURRENT_INSTANCE_GROUP": "dnn",
    "SM_INSTANCE_GROUPS_DICT": json.dumps(GROUPS),
    "SM_DISTRIBUTION_INSTANCE_GROUPS": '["dnn"]',
}
NONE_TRAINS = {**SDK_2, "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]"}  # an estimator names none
SDK_3 = {
    "SM_HOSTS": '["algo-1", "algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_MASTER_ADDR": "algo-1",
    "SM_HOST_COUNT": "2",
    "SM_CURRENT_HOST_RANK": "1",
}
CONFIG = {
    "current_host": "algo-1",
    "current_instance_type": "ml.c5",
    "current_group_name": "data",
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "instance_groups": list(GROUPS.values()),
    "network_interface_name": "eth0",
}
SPEC = {
    "cluster": {
        "workerpool0": ["job-workerpool0-ab-0:2222"],
        "workerpool2": ["job-workerpool2-ab-0:2222", "job-workerpool2-ab-1:2222"],
    },
    "environment": "cloud",
    "task": {"type": "workerpool2", "index": 1},
}


def contract(
    variables: dict[str, str],
    *,
    config: object = None,
    here: str | None = None,
    head: str | None = None,
    group: str | None = None,
    hosts: Sequence[str] = (),
    training: str | None = None,
    offload: str | None = None,
) -> ClusterHosts:
    flags = ClusterHostFlags(
        head=head, group=group, hosts=tuple(hosts), training=training, offload=offload
    )
    text = None if config is None else json.dumps(config)
    return find_cluster_hosts(variables, text, flags, lambda names: here if here in names else None)


def typed(**types: str | None) -> dict[str, str]:
    """A job with these groups, whose hosts have these types, and of which none is said to train.

    The first one has two hosts, this one among them, the other one has the first host.
    """
    groups = [
        {"instance_group_name": name, "instance_type": types[name], "hosts": hosts}
        for name, hosts in zip(types, (["algo-2", "algo-3"], ["algo-1"]), strict=True)
    ]
    variables = {"SM_INSTANCE_GROUPS_DICT": json.dumps(groups), "SM_CURRENT_INSTANCE_GROUP": ""}
    return {**NONE_TRAINS, **variables}


def test_sagemaker_s_groups_the_first_host_of_the_one_that_trains_is_the_head():
    assert contract(SDK_2) == ClusterHosts(
        head="algo-2", here="algo-3", group="dnn", hosts=("algo-1", "algo-2", "algo-3"),
        groups=(GroupSpec(name="dnn", hosts=2), GroupSpec(name="data", hosts=1)),
    )  # fmt: skip
    assert contract({**SDK_2, "SM_CURRENT_HOST": "algo-2"}).is_head


@pytest.mark.parametrize(
    ("variables", "flags", "head"),
    [
        # What flags say, then the environment, ...
        (SDK_2, {"training": "data"}, "algo-1"),
        (SDK_2, {"head": "algo-1"}, "algo-1"),
        (SDK_2, {"offload": "data"}, "algo-2"),
        (NONE_TRAINS, {"training": "data", "offload": "dnn"}, "algo-1"),
        (typed(dnn="ml.c5", data="ml.c5"), {"offload": "data"}, "algo-2"),
        (typed(dnn="ml.c5", data="ml.c5"), {"offload": "dnn"}, "algo-1"),
        (typed(dnn="ml.c5", data="ml.c5"), {"head": "algo-3", "offload": "data"}, "algo-3"),
        # ... and the types and names of groups, where neither does.
        (NONE_TRAINS, {}, "algo-2"),
        (typed(dnn="ml.p4d.24xlarge", data="ml.m5.large"), {}, "algo-2"),
        (typed(dnn="ml.trn1.2xlarge", data="ml.t3.large"), {}, "algo-2"),
        (typed(gpu="ml.c5", data="ml.c5"), {}, "algo-2"),
        (typed(dnn="ml.g6e.xlarge", gpu="ml.p5.48xlarge"), {}, "algo-1"),
        (typed(dnn=None, gpu=None), {}, "algo-1"),
        # The third SDK calls algo-1 the master, whatever its group.
        ({**NONE_TRAINS, "SM_MASTER_ADDR": "algo-1"}, {}, "algo-2"),
        ({**NONE_TRAINS, "SM_MASTER_ADDR": "algo-3"}, {}, "algo-3"),
        # Some hosts of the job alone: none of the group that would train is among them.
        (NONE_TRAINS, {"hosts": ["algo-1"], "here": "algo-1"}, "algo-1"),
    ],
)  # fmt: skip
def test_sagemaker_s_head_is_of_the_group_that_trains_whoever_says_which(
    variables: dict[str, str], flags: dict[str, Any], head: str
):
    assert contract(variables, **flags).head == head
    other = {"SM_CURRENT_HOST": "algo-1", "SM_CURRENT_INSTANCE_GROUP": ""}
    assert contract({**variables, **other}, **flags).head == head


def test_groups_that_nothing_distinguishes_are_reported_before_any_cluster_starts():
    for variables in (
        typed(dnn="ml.c5", data="ml.m5"),
        typed(dnn="ml.g5", data="ml.p4d"),
        typed(dnn=None, data=None),
    ):
        with pytest.raises(UsageError) as raised:
            contract(variables)
        assert str(raised.value).startswith(
            "Which of the groups dnn (algo-2, algo-3), data (algo-1) trains? "
        )
        assert str(raised.value).endswith("such as --group dnn=2 --group data=1.")


@pytest.mark.parametrize(
    ("variables", "flags", "message"),
    [
        (SDK_2, {"offload": "dnn"}, "--offload dnn: that group trains."),
        (NONE_TRAINS, {"training": "data", "offload": "data"}, "--offload data: that group trains"),
        (SDK_2, {"offload": "cpu"},
         "no host of this job is in that group. Name one of those that there are: dnn (algo-2"),
        (SDK_2, {"training": "gpu"}, "--group gpu=HOSTS: no host of this job is in that group"),
        ({}, {"group": "gpu", "hosts": ["a", "b"], "here": "a", "offload": "gpu"},
         "--offload gpu: that group trains"),
        ({"CLUSTER_SPEC": json.dumps({**SPEC, "task": {"type": "workerpool0", "index": 0}})},
         {"offload": "workerpool0"}, "--offload workerpool0: that group trains"),
    ],
)  # fmt: skip
def test_batches_are_made_by_a_group_that_is_there_and_does_not_train(
    variables: dict[str, str], flags: dict[str, Any], message: str
):
    with pytest.raises(UsageError) as raised:
        contract(variables, **flags)
    assert message in str(raised.value)


def test_a_host_whose_group_a_flag_says_leaves_the_others_to_say_theirs():
    found = contract(NONE_TRAINS, group="gpu", offload="cpu")
    assert (found.head, found.group, found.groups) == ("algo-2", "gpu", ())


def test_sagemaker_s_third_sdk_names_a_master_and_no_groups():
    assert contract(SDK_3) == ClusterHosts(
        head="algo-1", here="algo-2", group="gpu", hosts=("algo-1", "algo-2")
    )


def test_sagemaker_s_file_alone_or_its_variable():
    expected = ClusterHosts(
        head="algo-2", here="algo-1", group="data", hosts=("algo-1", "algo-2", "algo-3"),
        groups=(GroupSpec(name="dnn", hosts=2), GroupSpec(name="data", hosts=1)),
    )  # fmt: skip
    assert contract({}, config=CONFIG) == expected
    assert contract({"SM_RESOURCE_CONFIG": json.dumps(CONFIG)}) == expected
    # As the toolkit's own fallback calls it.
    renamed = {**CONFIG, "current_group_name": None, "current_instance_group": "data"}
    assert contract({}, config=renamed) == expected


def test_vertex_s_pools_are_groups_and_the_primary_is_the_head():
    assert contract({"CLUSTER_SPEC": json.dumps(SPEC)}) == ClusterHosts(
        head="job-workerpool0-ab-0",
        here="job-workerpool2-ab-1",
        group="workerpool2",
        hosts=("job-workerpool0-ab-0", "job-workerpool2-ab-0", "job-workerpool2-ab-1"),
    )


def test_by_hand_with_and_without_a_list():
    named = contract({}, head="a", group="gpu", hosts=["a", "b"], here="b")
    assert named == ClusterHosts(head="a", here="b", group="gpu", hosts=("a", "b"))
    assert not named.is_head
    assert contract({}, group="gpu", hosts=["a", "b"], here="a").is_head
    alone = contract({}, head="a", group="gpu", here="a")
    assert (alone.is_head, alone.hosts) == (True, ())
    other = contract({}, head="a", group="cpu")
    assert (other.is_head, other.here, other.group) == (False, None, "cpu")


def test_flags_come_before_the_environment():
    found = contract(SDK_2, head="algo-1", group="cpu")
    assert (found.head, found.here, found.group) == ("algo-1", "algo-3", "cpu")
    fewer = contract(SDK_2, hosts=["algo-1", "algo-3"])
    assert (fewer.hosts, fewer.head, fewer.here) == (("algo-1", "algo-3"), "algo-3", "algo-3")
    renamed = contract(SDK_2, hosts=["x", "y"], here="y")
    assert (renamed.hosts, renamed.head, renamed.here) == (("x", "y"), "x", "y")
    # They say all there is to say: what is wrong elsewhere does not matter.
    broken = {"CLUSTER_SPEC": "{"}
    assert contract(broken, group="gpu", hosts=["a"], here="a").is_head


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "Neither SageMaker (SM_HOSTS, resourceconfig.json) nor Vertex AI"),
        ({**SDK_2, "CLUSTER_SPEC": json.dumps(SPEC)}, "CLUSTER_SPEC speaks of a job on Vertex AI"),
        ({**SDK_2, "SM_HOSTS": "algo-1"}, "SM_HOSTS is not JSON"),
        ({**SDK_2, "SM_HOSTS": '{"a": 1}'}, "SM_HOSTS is not a list of names"),
        ({"SM_CURRENT_HOST": "algo-1"}, "does not say which hosts there are: neither SM_HOSTS"),
        ({"SM_HOSTS": '["a"]'}, "does not say which of them this host is"),
        ({**SDK_2, "SM_CURRENT_HOST": "algo-9"}, "this host is algo-9, but the hosts are algo-1"),
        ({**SDK_2, "SM_CURRENT_INSTANCE_GROUP": "data"},
         "in the group data by SM_CURRENT_INSTANCE_GROUP, but dnn by the list of groups"),
        ({**SDK_2, "SM_DISTRIBUTION_INSTANCE_GROUPS": '["tpu"]'}, "which hosts the group tpu of"),
        ({**SDK_2, "SM_HOSTS": '["algo-3"]'}, "SM_INSTANCE_GROUPS_DICT has algo-2, algo-1"),
        ({**SDK_2, "SM_RESOURCE_CONFIG": '{"hosts": ["algo-3"]}'}, "SM_HOSTS lists algo-1, algo-2"),
        ({**SDK_2, "SM_RESOURCE_CONFIG": "[]"}, "resourceconfig.json is not an object"),
        ({**SDK_2, "SM_HOSTS": '["algo-1","algo-2","algo-3","algo-3"]'}, "algo-3 is twice"),
        ({**SDK_3, "SM_HOST_COUNT": "3"}, "SM_HOST_COUNT is 3, but there are 2"),
        ({**SDK_3, "SM_HOST_COUNT": "two"}, "SM_HOST_COUNT='two' is not a whole number"),
        ({**SDK_3, "SM_CURRENT_HOST_RANK": "0"}, "this host is algo-2 by SM_CURRENT_HOST, but"),
        ({**SDK_3, "SM_CURRENT_HOST_RANK": "2"}, "SM_CURRENT_HOST_RANK is 2, but there are 2"),
        ({**SDK_3, "SM_MASTER_ADDR": "algo-7"}, "the head is algo-7, but the hosts are"),
        ({**SDK_2, "SM_MASTER_ADDR": "algo-1"}, "algo-2 by the first host of SM_DISTRIBUTION"),
        ({"CLUSTER_SPEC": "[]"}, 'CLUSTER_SPEC: it has no "cluster" and "task"'),
        ({"CLUSTER_SPEC": json.dumps({**SPEC, "cluster": {"workerpool2": ["b"]}})},
         "workerpool0, the pool of the head, has no host"),
        ({"CLUSTER_SPEC": json.dumps({**SPEC, "task": {"type": "chief", "index": 0}})},
         "this host's pool, 'chief', is none of workerpool0, workerpool2"),
        ({"CLUSTER_SPEC": json.dumps({**SPEC, "task": {"type": "workerpool2", "index": 2}})},
         "this host is number 2 of workerpool2, which has 2"),
    ],
)  # fmt: skip
def test_what_is_missing_or_contradictory_is_reported(variables: dict[str, str], message: str):
    with pytest.raises(UsageError) as raised:
        contract(variables)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"head": "a"}, "--head a: which instance group is this host in?"),
        ({"head": "c", "group": "gpu", "hosts": ["a", "b"], "here": "a"},
         "The head c is not among the hosts a, b"),
        ({"group": "gpu", "hosts": ["a", "b"]}, "This host is not among the hosts a, b"),
        ({"head": "a", "group": "g p u", "here": "a"}, "--group g p u: a name has letters"),
    ],
)  # fmt: skip
def test_flags_that_do_not_suffice_are_reported(flags: dict[str, object], message: str):
    with pytest.raises(UsageError) as raised:
        contract({}, **flags)  # type: ignore[arg-type]  # as a command line has them
    assert message in str(raised.value)
