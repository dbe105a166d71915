"""Variables of another job that a script would find beside those of its own.

A contract has some variables for every script, and others only where there is something to tell: a
channel, a hyperparameter, a second machine. One of these that is set though the job has nothing to
tell speaks of another job, and a script may go by its being there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache

from headrace.contracts.host_group import HostGroup
from headrace.contracts.sagemaker_folders import SageMakerFolders
from headrace.contracts.sagemaker_variables import sagemaker_variables
from headrace.contracts.training_job import Machine, TrainingJob
from headrace.contracts.vertex_variables import VertexPlaces, vertex_variables
from headrace.core import env

# What names of the user's choice follow. Vertex AI has more of AIP_* than is told here.
_SAGEMAKERS_BEGIN = ("SM_CHANNEL_", "SM_HP_")
_VERTEXS_BEGIN = ("AIP_",)


def strays(told: Collection[str], here: Iterable[str]) -> list[str]:
    """Return the variables, of some that are set, that contracts own and do not tell.

    Other names of SM_*, which no contract has, are the user's.

    Args:
        told: The names of those that contracts tell the script.
        here: The names of those that are set, whoever did.
    """
    sagemakers, vertexs, unknown = _owned()
    names: frozenset[str] = frozenset()
    begin: tuple[str, ...] = ()
    if env.SM_HOSTS.name in told:
        names, begin = names | sagemakers, begin + _SAGEMAKERS_BEGIN
    if env.CLUSTER_SPEC.name in told:
        names, begin = names | vertexs, begin + _VERTEXS_BEGIN
    return sorted(
        name
        for name in here
        if name not in told and name not in unknown and (name in names or name.startswith(begin))
    )


@cache
def _owned() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return SageMaker's names, Vertex AI's, and those for which they may have no value."""
    job = TrainingJob(
        name="any", groups=(HostGroup(name="any", hosts=("a", "b"), instance_type="local"),),
        entry_point="train.py", distribution="torch_distributed", distributed=("any",),
    )  # fmt: skip
    sagemakers = sagemaker_variables(job, "a", SageMakerFolders(), Machine(cpus=1))
    vertexs = vertex_variables(job, "a", VertexPlaces(output="any", data={}))
    both = [*sagemakers.items(), *vertexs.items()]
    unknown = frozenset(name for name, value in both if not value)
    return frozenset(sagemakers), frozenset(vertexs), unknown
