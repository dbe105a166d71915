"""What a RayCluster (ray.io/v1) of KubeRay may say, as far as the example says it.

Stated here in our own words, after the resource definition of KubeRay 1.6.0 and 1.7.0, which no
package carries. Kubernetes drops a field that it does not know without a word; here nothing may
stand that is not named. Pods are held against Kubernetes' own schemas, from `kubernetes-validate`.
A definition at hand says whether this is still true:

    RAYCLUSTER_CRD=ray.io_rayclusters.yaml pytest tests/unit/test_kuberay_file.py
"""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate

KUBERNETES = "1.37"
Schema = dict[str, Any]


def closed(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
POD: Schema = {"type": "object"}

HEAD = closed(("template",), labels=TEXTS, rayStartParams=TEXTS, resources=TEXTS, template=POD)
WORKERS = closed(
    ("groupName", "maxReplicas", "minReplicas", "template"),
    groupName=TEXT,
    labels=TEXTS,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    numOfHosts=COUNT,
    rayStartParams=TEXTS,
    resources=TEXTS,
    template=POD,
)
SPEC = closed(
    ("headGroupSpec",),
    rayVersion=TEXT,
    authOptions=closed(mode={"type": "string", "enum": ["disabled", "token"]}, secretName=TEXT),
    enableInTreeAutoscaling={"type": "boolean"},
    headGroupSpec=HEAD,
    workerGroupSpecs={"type": "array", "items": WORKERS},
)
RAY_CLUSTER = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"type": "string", "const": "ray.io/v1"},
    kind={"type": "string", "const": "RayCluster"},
    metadata=closed(("name",), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS),
    spec=SPEC,
)


def check(cluster: dict[str, Any]) -> None:
    """Hold a RayCluster against KubeRay's fields, and its pods against Kubernetes'.

    Raises:
        jsonschema.ValidationError: It says what may not be said.
    """
    jsonschema.validate(cluster, RAY_CLUSTER)
    for group in groups(cluster):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def groups(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the head's group and those of the workers."""
    spec = cluster["spec"]
    return [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])]


def closed_definition(schema: Schema) -> Schema:
    """Return the schema of a resource definition, where fields it does not name are refused."""
    kept = dict(schema)
    if "properties" in schema:
        kept["properties"] = {
            name: closed_definition(value) for name, value in schema["properties"].items()
        }
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            kept[inner] = closed_definition(schema[inner])
    return kept
