"""Where a script on SageMaker finds and leaves what: the tree that is /opt/ml there.

Source: docs.aws.amazon.com/sagemaker, "How Amazon SageMaker AI Processes Training Output" and
"...Provides Training Information"; sagemaker-training 5, environment.py.
"""

from __future__ import annotations

from dataclasses import dataclass

USUAL_BASE = "/opt/ml"


@dataclass(frozen=True, slots=True)
class SageMakerFolders:
    """The paths of such a tree.

    Attributes:
        base: Its root, an absolute path.
    """

    base: str = USUAL_BASE

    @property
    def code(self) -> str:
        """The script's folder, for SDK 2's containers."""
        return f"{self.base}/code"

    @property
    def model(self) -> str:
        """What the script leaves there is the model."""
        return f"{self.base}/model"

    @property
    def checkpoints(self) -> str:
        """Checkpoints: kept elsewhere while the job runs, and there again when it is restarted."""
        return f"{self.base}/checkpoints"

    @property
    def input(self) -> str:
        """Everything that the script is given."""
        return f"{self.base}/input"

    @property
    def config(self) -> str:
        """Files that describe the job."""
        return f"{self.input}/config"

    @property
    def data(self) -> str:
        """The channels."""
        return f"{self.input}/data"

    @property
    def output(self) -> str:
        """What is left beside the model, and how the job ended."""
        return f"{self.base}/output"

    @property
    def output_data(self) -> str:
        """What the script leaves there is kept with the model."""
        return f"{self.output}/data"

    @property
    def intermediate(self) -> str:
        """Likewise, while the job runs."""
        return f"{self.output}/intermediate"

    @property
    def failure(self) -> str:
        """The file that says why the job failed."""
        return f"{self.output}/failure"

    def channel(self, name: str) -> str:
        """Return where a channel is."""
        return f"{self.data}/{name}"
