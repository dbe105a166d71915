"""What a script gets by its contracts, of which there may be several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.contracts.sagemaker_arguments import sagemaker_arguments, sagemaker_v3_arguments
from headrace.contracts.sagemaker_folders import SageMakerFolders
from headrace.contracts.sagemaker_variables import sagemaker_v3_variables, sagemaker_variables
from headrace.contracts.training_job import Machine, TrainingJob
from headrace.contracts.vertex_variables import VertexPlaces, vertex_arguments, vertex_variables

ContractName = Literal["torchrun", "sagemaker", "sagemaker-v3", "vertex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
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
        self, folders: SageMakerFolders, places: VertexPlaces, machine: Machine
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
