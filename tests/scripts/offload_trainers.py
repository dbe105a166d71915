"""Trains with Lightning, Accelerate and transformers' Trainer, which make loaders of their own.

Each trains twice: with loaders as they are, and with what torch has in place of what is there.
Prints whether both gave the same network, and how many samples of each came from other hosts.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from pathlib import Path

import lightning
import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

SAMPLES, EPOCHS = 48, 2


class Points:
    """Returns whether another host made a sample; where others are to take part, they go first."""

    def __init__(self, mark: Path | None) -> None:
        self.mark = mark

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict:
        on_auxiliary = "SERVER" in os.environ
        deadline_s = time.monotonic() + 60
        if on_auxiliary:
            self.mark.touch()
        while self.mark and not self.mark.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        x = np.full(4, index / SAMPLES, np.float32)
        return {"x": x, "labels": index % 3, "on_auxiliary": int(on_auxiliary)}


class Net(nn.Module):
    """Counts samples by where they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.made = {"here": 0, "auxiliary": 0}

    def forward(self, x=None, labels=None, on_auxiliary=None) -> dict:
        self.made["auxiliary"] += int(on_auxiliary.sum())
        self.made["here"] += int((1 - on_auxiliary).sum())
        return {"loss": nn.functional.cross_entropy(self.layer(x), labels)}


class Module(lightning.LightningModule):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: dict, _) -> torch.Tensor:
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def by_lightning(net: Net, dataset: Points) -> None:
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(net), DataLoader(dataset, 4, shuffle=True, num_workers=1))


def by_accelerate(net: Net, dataset: Points) -> None:
    loader = DataLoader(dataset, 4, shuffle=True, num_workers=1)
    accelerator = Accelerator(cpu=True)
    net, loader, optimizer = accelerator.prepare(
        net, loader, torch.optim.SGD(net.parameters(), lr=0.1)
    )
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()


def by_transformers(net: Net, dataset: Points) -> None:
    arguments = TrainingArguments(
        "out", num_train_epochs=EPOCHS, per_device_train_batch_size=4, save_strategy="no",
        dataloader_num_workers=1, dataloader_persistent_workers=True, report_to=[],
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    Trainer(net, arguments, train_dataset=dataset).train()


def trained(train, mark: Path | None) -> Net:
    torch.manual_seed(3)
    net = Net()
    train(net, Points(mark))
    return net


if __name__ == "__main__":
    ours, torchs = DataLoader._get_iterator, inspect.unwrap(DataLoader._get_iterator)
    for train in (by_lightning, by_accelerate, by_transformers):
        helped = trained(train, Path(f"{train.__name__}.mark"))
        DataLoader._get_iterator = torchs
        alone = trained(train, None)
        DataLoader._get_iterator = ours
        result = {
            "same": torch.equal(helped.layer.weight, alone.layer.weight),
            "helped": helped.made, "alone": alone.made,
        }  # fmt: skip
        sys.stdout.write(f"{train.__name__} {json.dumps(result)}\n")
