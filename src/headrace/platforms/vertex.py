"""The contract of Vertex AI: variables, arguments, paths, and the topology read back from them.

One process runs on each machine (a replica of a worker pool), and RANK and WORLD_SIZE count
machines. Source: docs.cloud.google.com/vertex-ai, "Distributed training" and "Environment variables
for special Cloud Storage directories"; port 3333 is known from scripts that run there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.platforms.training_job import (
    Channel,
    JobTopology,
    TrainingJob,
    parse_json_value,
    parse_names,
)

MASTER_PORT = 3333
VERTEX_FOLDERS = ("model", "checkpoints", "logs")
"""The folders of AIP_*_DIR, below the output."""
SEEN_OUTPUT = "/gcs/headrace-"
"""Where scripts see their output, if it can be mounted there.

On the service AIP_MODEL_DIR is gs://BUCKET/..., and the bucket is mounted at /gcs/BUCKET. Scripts
take it as a path, replace gs:// by /gcs/, cut five characters off and write /gcs/ before the rest,
or split it at slashes, where the third part is the bucket. Of this path all of these give itself.
Google's client refuses a bucket whose name ends in a hyphen, without asking for it.
"""
_SPEC_PORT = 2222
_PRIMARY, _WORKERS = "workerpool0", "workerpool1"
_DIRS = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
_IN_TF_CONFIG = {
    _PRIMARY: "chief",
    _WORKERS: "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}
_DATA_OF = {"training": "TRAINING", "train": "TRAINING", "validation": "VALIDATION", "test": "TEST"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexPaths:
    """The paths of a script on Vertex AI."""

    output: str  # a folder or a URL
    data: Mapping[str, str]  # where channels are; AIP_*_DATA_URI for training, validation and test
    project: str = ""  # the cloud's; "": none
    region: str = ""


def worker_pools(job: TrainingJob) -> dict[str, tuple[str, ...]]:
    """Return a job's hosts by worker pool: pools 0 and 1 train, pools 2 and 3 have other groups.

    The primary pool has one replica. Groups beyond the fourth pool join it.
    """
    training = [group for group in job.groups if group.name in job.distributed] or [job.groups[0]]
    hosts = [host for group in training for host in group.hosts]
    pools: dict[str, tuple[str, ...]] = {_PRIMARY: (hosts[0],)}
    if hosts[1:]:
        pools[_WORKERS] = tuple(hosts[1:])
    names = [group.name for group in training]
    for number, group in enumerate(group for group in job.groups if group.name not in names):
        pool = f"workerpool{min(2 + number, 3)}"
        pools[pool] = (*pools.get(pool, ()), *group.hosts)
    return pools


def vertex_variables(job: TrainingJob, host: str, paths: VertexPaths) -> dict[str, str]:
    """Return the variables of a script on a host."""
    pools = worker_pools(job)
    machines = [each for pool in sorted(pools) for each in pools[pool]]
    pool = next(pool for pool, hosts in pools.items() if host in hosts)
    output = paths.output.rstrip("/")
    variables = {
        "CLUSTER_SPEC": _compact(_cluster_spec(job, pools, pool, host)),
        "RANK": str(machines.index(host)),
        "WORLD_SIZE": str(len(machines)),
        "MASTER_ADDR": machines[0],
        "MASTER_PORT": str(job.master_port or MASTER_PORT),
        **{name: f"{output}/{folder}/" for name, folder in zip(_DIRS, VERTEX_FOLDERS, strict=True)},
        "CLOUD_ML_JOB_ID": job.name,
        "CLOUD_ML_PROJECT_ID": paths.project,
        "CLOUD_ML_REGION": paths.region,  # `job.region` is another cloud's
        **_data(job, host, paths),
    }
    if len(machines) > 1:
        variables["TF_CONFIG"] = _compact(_tf_config(pools, pool, host))
    return variables


def output_mounts(output: str) -> dict[str, str]:
    """Return the folder of the output by each path at which a script may look for it."""
    # Also where it writes /gcs/ before the whole path, and where it has stripped the characters of
    # "gs://" rather than that beginning. Elsewhere in /gcs nothing can be written.
    places = (SEEN_OUTPUT, f"/gcs{SEEN_OUTPUT}", SEEN_OUTPUT.replace("/gcs/", "/gcs/cs/"))
    return dict.fromkeys(places, output)


def experiment_variables(experiment: str, run: str | None) -> dict[str, str]:
    """Return the variables of a job with an experiment, and perhaps an experiment run."""
    variables = {"AIP_EXPERIMENT_NAME": experiment}
    return variables if run is None else {**variables, "AIP_EXPERIMENT_RUN_NAME": run}


def vertex_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters in the form in which Vertex AI's tuning passes them to a script."""
    return [
        f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in hyperparameters.items()
    ]


def _cluster_spec(
    job: TrainingJob, pools: Mapping[str, tuple[str, ...]], pool: str, host: str
) -> dict[str, Any]:
    return {
        "cluster": {name: [f"{each}:{_SPEC_PORT}" for each in pools[name]] for name in pools},
        "environment": "cloud",
        "task": {"type": pool, "index": pools[pool].index(host)},
        "job": {
            "worker_pool_specs": [
                {
                    "replica_count": len(pools[name]),
                    "machine_spec": {"machine_type": job.group_of(pools[name][0]).instance_type},
                    "python_package_spec": {"python_module": job.entry_point},
                }
                for name in sorted(pools)
            ]
        },
    }


def _tf_config(pools: Mapping[str, tuple[str, ...]], pool: str, host: str) -> dict[str, Any]:
    return {
        "cluster": {
            _IN_TF_CONFIG[name]: [f"{each}:{_SPEC_PORT}" for each in pools[name]] for name in pools
        },
        "environment": "cloud",
        "task": {"type": _IN_TF_CONFIG[pool], "index": pools[pool].index(host)},
    }


def _data(job: TrainingJob, host: str, paths: VertexPaths) -> dict[str, str]:
    variables = {}
    formats = set()
    for channel in job.channels_of(host):
        kind = _DATA_OF.get(channel.name)
        if kind is not None and channel.name in paths.data:
            variables[f"AIP_{kind}_DATA_URI"] = paths.data[channel.name]
            formats.add(_format(channel, paths.data[channel.name]))
    if not variables:
        return {}
    # There is one format for all: csv only where each channel is.
    return {"AIP_DATA_FORMAT": "csv" if formats == {"csv"} else "jsonl", **variables}


def _format(channel: Channel, place: str) -> str:
    """Return the format in which the service would export such data: csv for tables, else jsonl."""
    kind = (channel.content_type or "").partition(";")[0].strip()
    return "csv" if kind == "text/csv" or (not kind and place.endswith(".csv")) else "jsonl"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def vertex_paths(output: str, data: Mapping[str, str]) -> VertexPaths:
    """Return the paths of a script, with project and region from gcloud's variables."""
    return VertexPaths(
        output=output,
        data=data,
        project=env.GOOGLE_CLOUD_PROJECT.get() or env.CLOUDSDK_CORE_PROJECT.get() or "",
        region=env.GOOGLE_CLOUD_REGION.get() or env.CLOUDSDK_COMPUTE_REGION.get() or "",
    )


_CLUSTER_SPEC = env.CLUSTER_SPEC.name


def vertex_topology(variables: Mapping[str, str | None]) -> JobTopology | None:
    """Return the topology of a job on Vertex AI; None: this is no such job.

    A host's group is the name of its worker pool; the head is the host of the primary pool. The
    instance groups are unknown: each pool has its own arguments, which may name its group.
    `variables` are those of `env.HOST_LIST_VARIABLES`. UsageError: CLUSTER_SPEC is incomplete.
    """
    spec = parse_json_value(_CLUSTER_SPEC, variables.get(_CLUSTER_SPEC))
    if spec is None:
        return None
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    task = spec.get("task") if isinstance(spec, dict) else None
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise _cluster_spec_error('it has no "cluster" and "task"')
    pools = {
        pool: tuple(map(_without_port, parse_names(f"{_CLUSTER_SPEC}, {pool}", cluster[pool])))
        for pool in sorted(cluster)
    }
    if not pools.get(_PRIMARY):
        raise _cluster_spec_error(f"{_PRIMARY}, the pool of the head, has no host")
    pool, index = task.get("type"), task.get("index")
    if not isinstance(pool, str) or pool not in pools:
        raise _cluster_spec_error(f"this host's pool, {pool!r}, is none of {', '.join(pools)}")
    try:
        here = pools[pool][int(str(index))]
    except (ValueError, IndexError):
        raise _cluster_spec_error(
            f"this host is number {index!r} of {pool}, which has {len(pools[pool])}"
        ) from None
    return JobTopology(
        hosts=tuple(host for each in pools.values() for host in each),
        here=here,
        head=pools[_PRIMARY][0],
        group=pool,
        primary=(*pools[_PRIMARY], *pools.get(_WORKERS, ())),
    )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _cluster_spec_error(why: str) -> UsageError:
    return UsageError(f"{_CLUSTER_SPEC}: {why}. Correct it.")
