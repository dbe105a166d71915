"""The variables and arguments of a script by its contracts, and conflicting variables.

A contract has some variables for every script, and others only for a channel, a hyperparameter or
a second machine, say. One of those that is set although the job has no such thing belongs to
another job, and a script may act on its presence.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from headrace.core import env
from headrace.platforms.instance_groups import HostGroup
from headrace.platforms.sagemaker import (
    SageMakerFolders,
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
    """The contracts of a script on one host of a job."""

    contracts: Sequence[ContractName]  # torchrun itself fulfils its own
    job: TrainingJob
    host: str

    def variables(
        self, folders: SageMakerFolders, paths: VertexPaths, machine: HostResources
    ) -> dict[str, str]:
        """Return the script's variables; where two contracts have the same one, SageMaker's."""
        found: dict[str, str] = {}
        if "vertex" in self.contracts:
            found |= vertex_variables(self.job, self.host, paths)
        if "sagemaker" in self.contracts:
            found |= sagemaker_variables(self.job, self.host, folders, machine)
        elif "sagemaker-v3" in self.contracts:
            found |= sagemaker_v3_variables(self.job, self.host, folders, machine)
        return found

    def arguments(self) -> list[str]:
        """Return the hyperparameters as the script's arguments."""
        return script_arguments(self.contracts, self.job.hyperparameters)


def script_arguments(
    contracts: Sequence[ContractName], hyperparameters: Mapping[str, Any]
) -> list[str]:
    """Return hyperparameters as arguments, in the form of the first contract that has one.

    Without such a contract they are in the order given: texts as they are, other values as JSON.
    """
    if "sagemaker" in contracts:
        return sagemaker_arguments(hyperparameters)
    if "sagemaker-v3" in contracts:
        return sagemaker_v3_arguments(hyperparameters)
    if "vertex" in contracts:
        return vertex_arguments(hyperparameters)
    return [
        word
        for name, value in hyperparameters.items()
        for word in (f"--{name}", value if isinstance(value, str) else json.dumps(value))
    ]


# Prefixes of names that the user chooses. Vertex AI has more AIP_* variables than those here.
_SAGEMAKER_PREFIXES = ("SM_CHANNEL_", "SM_HP_")
_VERTEX_PREFIXES = ("AIP_",)


def conflicting_variables(own: Collection[str], here: Iterable[str]) -> list[str]:
    """Return which set variables belong to a contract that does not set them for this job.

    `own` are the names that the contracts set, `here` those that are set already. Other SM_*
    names, which no contract has, are the user's.
    """
    sagemaker, vertex, unknown = _contract_variables()
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    if env.SM_HOSTS.name in own:
        names, prefixes = names | sagemaker, prefixes + _SAGEMAKER_PREFIXES
    if env.CLUSTER_SPEC.name in own:
        names, prefixes = names | vertex, prefixes + _VERTEX_PREFIXES
    return sorted(
        name
        for name in here
        if name not in own and name not in unknown and (name in names or name.startswith(prefixes))
    )


@cache
def _contract_variables() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return SageMaker's names, Vertex AI's, and those that may have an empty value."""
    job = TrainingJob(
        name="any", groups=(HostGroup(name="any", hosts=("a", "b"), instance_type="local"),),
        entry_point="train.py", distribution="torch_distributed", distributed=("any",),
    )  # fmt: skip
    sagemaker = sagemaker_variables(job, "a", SageMakerFolders(), HostResources(cpus=1))
    vertex = vertex_variables(job, "a", VertexPaths(output="any", data={}))
    both = [*sagemaker.items(), *vertex.items()]
    unknown = frozenset(name for name, value in both if not value)
    return frozenset(sagemaker), frozenset(vertex), unknown
