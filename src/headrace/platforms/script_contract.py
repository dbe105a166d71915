"""The variables and arguments of a script by its contracts, and conflicting variables.

A contract has some variables for every script, and others only where there is something to say: a
channel, a hyperparameter, a second machine. One of these that is set though the job has no such
thing belongs to another job, and a script may go by its presence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from headrace.core import env
from headrace.platforms.instance_groups import HostGroup
from headrace.platforms.sagemaker.folders import SageMakerFolders
from headrace.platforms.sagemaker.variables import (
    sagemaker_arguments,
    sagemaker_v3_arguments,
    sagemaker_v3_variables,
    sagemaker_variables,
)
from headrace.platforms.training_job import HostResources, TrainingJob
from headrace.platforms.vertex import VertexPaths, vertex_arguments, vertex_variables

ContractName = Literal["torchrun", "sagemaker", "sagemaker-v3", "vertex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptContract:
    """A script on one host of a job.

    Attributes:
        contracts: By which it is told of the job; torchrun's is torchrun's own business.
        job: What all hosts are told.
        host: The one that it runs on.
    """

    contracts: Sequence[ContractName]
    job: TrainingJob
    host: str

    @property
    def is_sagemakers(self) -> bool:
        """Whether it is told as on SageMaker."""
        return "sagemaker" in self.contracts or "sagemaker-v3" in self.contracts

    def variables(
        self, folders: SageMakerFolders, places: VertexPaths, machine: HostResources
    ) -> dict[str, str]:
        """Return its variables; where two contracts have one of the same name, SageMaker's.

        Args:
            folders: Where it finds and leaves what on SageMaker.
            places: Likewise on Vertex AI.
            machine: What the host has.
        """
        found: dict[str, str] = {}
        if "vertex" in self.contracts:
            found |= vertex_variables(self.job, self.host, places)
        if "sagemaker" in self.contracts:
            found |= sagemaker_variables(self.job, self.host, folders, machine)
        elif "sagemaker-v3" in self.contracts:
            found |= sagemaker_v3_variables(self.job, self.host, folders, machine)
        return found

    def arguments(self) -> list[str]:
        """Return the hyperparameters as its arguments."""
        return script_arguments(self.contracts, self.job.hyperparameters)


def script_arguments(
    contracts: Sequence[ContractName], hyperparameters: Mapping[str, Any]
) -> list[str]:
    """Return hyperparameters as arguments, in the dialect of the first contract that has one.

    Without any it is that of SageMaker's SDK 3: in the order given, values as JSON.
    """
    if "sagemaker" in contracts:
        return sagemaker_arguments(hyperparameters)
    if "vertex" in contracts and "sagemaker-v3" not in contracts:
        return vertex_arguments(hyperparameters)
    return sagemaker_v3_arguments(hyperparameters)


# What names of the user's choice follow. Vertex AI has more of AIP_* than is told here.
_SAGEMAKER_PREFIXES = ("SM_CHANNEL_", "SM_HP_")
_VERTEX_PREFIXES = ("AIP_",)


def conflicting_variables(told: Collection[str], here: Iterable[str]) -> list[str]:
    """Return the variables, of some that are set, that contracts own and do not tell.

    Other names of SM_*, which no contract has, are the user's.

    Args:
        told: The names of those that contracts tell the script.
        here: The names of those that are set, whoever did.
    """
    sagemakers, vertexs, unknown = _contract_variables()
    names: frozenset[str] = frozenset()
    begin: tuple[str, ...] = ()
    if env.SM_HOSTS.name in told:
        names, begin = names | sagemakers, begin + _SAGEMAKER_PREFIXES
    if env.CLUSTER_SPEC.name in told:
        names, begin = names | vertexs, begin + _VERTEX_PREFIXES
    return sorted(
        name
        for name in here
        if name not in told and name not in unknown and (name in names or name.startswith(begin))
    )


@cache
def _contract_variables() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return SageMaker's names, Vertex AI's, and those for which they may have no value."""
    job = TrainingJob(
        name="any", groups=(HostGroup(name="any", hosts=("a", "b"), instance_type="local"),),
        entry_point="train.py", distribution="torch_distributed", distributed=("any",),
    )  # fmt: skip
    sagemakers = sagemaker_variables(job, "a", SageMakerFolders(), HostResources(cpus=1))
    vertexs = vertex_variables(job, "a", VertexPaths(output="any", data={}))
    both = [*sagemakers.items(), *vertexs.items()]
    unknown = frozenset(name for name, value in both if not value)
    return frozenset(sagemakers), frozenset(vertexs), unknown
