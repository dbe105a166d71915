"""Trains by Lightning for two epochs.

With --logger Lightning logs to MLflow by itself; with --runs it trains in runs of the script's own,
with --before also before the first of them.
"""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """A linear model whose loss is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = self.net(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


logger = False
if "--logger" in sys.argv:
    from lightning.pytorch.loggers import MLFlowLogger

    logger = MLFlowLogger(experiment_name="lightning's")


def fit() -> None:
    trainer = lightning.Trainer(
        max_epochs=2, logger=logger, log_every_n_steps=4, enable_checkpointing=False,
        enable_progress_bar=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8))


if "--runs" in sys.argv:
    from headrace import experiments

    experiments.init(experiment="auto")
    with experiments.start_run("a"):
        experiments.autolog()
        fit()
        fit()
    with experiments.start_run("b"):
        fit()
if "--before" in sys.argv:
    from headrace import experiments

    experiments.init(experiment="auto")
    experiments.autolog()
    fit()
    with experiments.start_run("mine"):
        fit()
fit()  # of no run, or of the job's
