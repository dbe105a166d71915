"""Trains a linear model for sixteen steps by a library, whose own logger writes for TensorBoard."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Sixteen rows for each of two epochs' batches of four."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), number / 32), "labels": torch.ones(1)}


class Net(nn.Module):
    """Returns its loss, as models of Trainer do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}


def by_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(log_with="tensorboard", project_dir="logs", cpu=True)
    accelerator.init_trackers("tracked", config={"momentum": 0.5})
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Rows(), batch_size=4))
    step = 0
    for _ in range(2):
        for batch in loader:
            loss = net(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.item()}, step=step)
            step += 1
    accelerator.end_training()


def by_lightning() -> None:
    import lightning
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(lightning.LightningModule):
        def __init__(self, momentum: float) -> None:
            super().__init__()
            self.save_hyperparameters({"momentum": momentum})
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss = self.net(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=2, logger=TensorBoardLogger("logs"), log_every_n_steps=1, accelerator="cpu",
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(momentum=0.5), DataLoader(Rows(), batch_size=4))


def by_trainer() -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=2, per_device_train_batch_size=4, logging_steps=1,
        report_to=["tensorboard"], use_cpu=True, save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    Trainer(model=Net(), args=arguments, train_dataset=Rows()).train()


{"accelerate": by_accelerate, "lightning": by_lightning, "trainer": by_trainer}[sys.argv[1]]()
