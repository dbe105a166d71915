"""The hosts of a job on Vertex AI, as CLUSTER_SPEC tells them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.contracts.told_hosts import ToldHosts, names_in, parse_told
from headrace.core import env
from headrace.core.errors import UsageError

_PRIMARY = "workerpool0"  # always of one replica
_WORKERS = "workerpool1"  # the next ones serve parameters, and evaluate
_NAME = env.CLUSTER_SPEC.name


def tells_vertex(variables: Mapping[str, str | None]) -> ToldHosts | None:
    """Return the hosts of a job on Vertex AI; None: this is no such job.

    A host's group is the name of its worker pool; the head is that of the primary pool. Which
    groups there are is not told: each pool has arguments of its own, which may name its group.

    Args:
        variables: Those of `env.HOSTS_OF_THE_JOB`.

    Raises:
        UsageError: CLUSTER_SPEC lacks something.
    """
    spec = parse_told(_NAME, variables.get(_NAME))
    if spec is None:
        return None
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    task = spec.get("task") if isinstance(spec, dict) else None
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise _wrong('it has no "cluster" and "task"')
    pools = {
        pool: tuple(map(_without_port, names_in(f"{_NAME}, {pool}", cluster[pool])))
        for pool in sorted(cluster)
    }
    if not pools.get(_PRIMARY):
        raise _wrong(f"{_PRIMARY}, the pool of the head, has no host")
    pool, index = task.get("type"), task.get("index")
    if not isinstance(pool, str) or pool not in pools:
        raise _wrong(f"this host's pool, {pool!r}, is none of {', '.join(pools)}")
    try:
        here = pools[pool][int(str(index))]
    except (ValueError, IndexError):
        raise _wrong(
            f"this host is number {index!r} of {pool}, which has {len(pools[pool])}"
        ) from None
    hosts = tuple(host for each in pools.values() for host in each)
    return ToldHosts(
        hosts=hosts,
        here=here,
        head=pools[_PRIMARY][0],
        group=pool,
        primary=(*pools[_PRIMARY], *pools.get(_WORKERS, ())),
    )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _wrong(why: str) -> UsageError:
    return UsageError(f"{_NAME}: {why}. Correct it.")
