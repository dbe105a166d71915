"""examples/clusters/kuberay.yaml: what KubeRay and Kubernetes take, and what Headrace needs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import GROUP_LABEL, parse_groups
from ray_cluster_schema import SPEC, check, closed_definition, groups

FILE = Path(__file__).parents[2] / "examples" / "clusters" / "kuberay.yaml"
Cluster = dict[str, Any]


@pytest.fixture
def cluster() -> Cluster:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def head(cluster: Cluster) -> dict[str, Any]:
    return cluster["spec"]["headGroupSpec"]


def workers(cluster: Cluster) -> dict[str, Any]:
    return cluster["spec"]["workerGroupSpecs"][0]


def pod(group: dict[str, Any]) -> dict[str, Any]:
    return group["template"]["spec"]


BREAKS: list[tuple[str, Callable[[Cluster], object]]] = [
    ("apiVersion", lambda it: it.update(apiVersion="ray.io/v1alpha1")),
    ("unexpected", lambda it: it["spec"].update(workerGroupSpec=[])),
    ("unexpected", lambda it: it["spec"]["authOptions"].update(token="given")),
    ("not one of", lambda it: it["spec"]["authOptions"].update(mode="Token")),
    ("required", lambda it: it["spec"].pop("headGroupSpec")),
    ("not of type", lambda it: it["spec"].update(rayVersion=2.60)),
    ("not of type", lambda it: head(it).update(labels=["headrace.group=gpu"])),
    ("not of type", lambda it: head(it)["labels"].update({GROUP_LABEL: 1})),
    ("unexpected", lambda it: head(it).update(replicas=1)),
    ("required", lambda it: workers(it).pop("maxReplicas")),
    ("not of type", lambda it: workers(it).update(replicas="2")),
    ("less than the minimum", lambda it: workers(it).update(minReplicas=-1)),
    ("unexpected", lambda it: pod(workers(it))["containers"][0].update(volumeMount=[])),
    ("required", lambda it: pod(workers(it)).pop("containers")),
    ("unexpected", lambda it: pod(head(it))["volumes"][0]["emptyDir"].update(size="1Gi")),
    ("not of type", lambda it: pod(head(it))["containers"][0].update(args="torch")),
]


def test_kuberay_and_kubernetes_know_every_field(cluster: Cluster):
    check(cluster)


@pytest.mark.parametrize(("message", "harm"), BREAKS)
def test_a_harmed_copy_is_refused(
    cluster: Cluster, message: str, harm: Callable[[Cluster], object]
):
    harm(cluster)
    with pytest.raises(jsonschema.ValidationError) as raised:
        check(cluster)
    assert re.search(message, f"{raised.value.message} at {list(raised.value.absolute_path)}")


def names(cluster: Cluster) -> list[str]:
    flags = [f"{group['labels'][GROUP_LABEL]}=1" for group in groups(cluster)]
    return [group.name for group in parse_groups(flags)]


def test_a_group_without_its_label_or_with_another_s_is_seen(cluster: Cluster):
    workers(cluster)["labels"][GROUP_LABEL] = "gpu"
    with pytest.raises(UsageError, match="given twice"):
        names(cluster)
    del workers(cluster)["labels"][GROUP_LABEL]
    with pytest.raises(KeyError):
        names(cluster)


def test_each_group_has_its_label_and_shared_memory(cluster: Cluster):
    assert names(cluster) == ["gpu", "cpu"]
    assert {workers(cluster)[key] for key in ("replicas", "minReplicas", "maxReplicas")} == {2}
    for group in groups(cluster):
        (container,) = pod(group)["containers"]
        (volume,) = pod(group)["volumes"]
        (mount,) = container["volumeMounts"]
        assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}  # noqa: S108
        assert volume["emptyDir"]["medium"] == "Memory"
        assert container["resources"]["limits"] == container["resources"]["requests"]
        # KubeRay refuses it beside the field of the group.
        assert "labels" not in group["rayStartParams"]
    asks = [pod(group)["containers"][0]["resources"]["limits"] for group in groups(cluster)]
    assert [limits.get("nvidia.com/gpu") for limits in asks] == ["1", None]


def test_who_comes_in_has_a_token_and_the_dashboard_is_not_for_the_network(cluster: Cluster):
    assert cluster["spec"]["authOptions"]["mode"] == "token"
    assert head(cluster)["rayStartParams"]["dashboard-host"] == "127.0.0.1"


@pytest.mark.skipif("RAYCLUSTER_CRD" not in os.environ, reason="it names no file")
def test_a_definition_at_hand_agrees(cluster: Cluster):
    definition = yaml.load(Path(os.environ["RAYCLUSTER_CRD"]).read_bytes(), yaml.CSafeLoader)
    (version,) = (it for it in definition["spec"]["versions"] if it["name"] == "v1")
    whole = version["schema"]["openAPIV3Schema"]
    jsonschema.validate(cluster, closed_definition(whole))
    agrees(SPEC, whole["properties"]["spec"], "spec")


def agrees(ours: dict[str, Any], theirs: dict[str, Any], where: str) -> None:
    assert ours["type"] == theirs["type"], where
    assert ours.get("enum") == theirs.get("enum"), where
    if "properties" in ours:
        assert ours["required"] == theirs.get("required", []), where
    for name, schema in ours.get("properties", {}).items():
        assert name in theirs["properties"], f"{where}.{name}"
        agrees(schema, theirs["properties"][name], f"{where}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(ours.get(inner), dict):
            agrees(ours[inner], theirs[inner], f"{where}.{inner}")
