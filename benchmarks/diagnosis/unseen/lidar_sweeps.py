"""Train with Lightning on point clouds that are thinned out evenly."""

import logging
import tempfile

import lightning
import numpy as np
import torch
from emulated import Network
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def farthest_points(points, count):
    """Return points each of which is as far as can be from those before it."""
    chosen = [0]
    distance = np.full(len(points), np.inf, np.float32)
    for _ in range(count - 1):
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(1))  # at fault
        chosen.append(int(distance.argmax()))
    return points[chosen]


def turned(points, angle):
    """Return the points, turned around the vertical axis."""
    sine, cosine = np.sin(angle), np.cos(angle)
    turn = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]], np.float32)
    return points @ turn


class Sweeps(Dataset):
    """Sweeps of a laser scanner and what stands there."""

    def __init__(self, folder, count):
        self.folder, self.count = folder, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        points = np.load(f"{self.folder}/{index % 20}.npy")
        points = farthest_points(turned(points, index), 128)
        return torch.from_numpy(points), index % 10


class Classifier(lightning.LightningModule):
    """A network and how it is trained."""

    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = Network(step_ms=15)

    def training_step(self, batch, _index):
        """Return the loss of a batch."""
        points, labels = batch
        return nn.functional.cross_entropy(self.net(points), labels)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main():
    """Train one epoch."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    random = np.random.default_rng(8)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(20):
            np.save(f"{folder}/{number}.npy", random.normal(size=(4096, 3)).astype(np.float32))
        loader = DataLoader(Sweeps(folder, 1040), batch_size=8, shuffle=True, num_workers=2)
        trainer = lightning.Trainer(
            max_epochs=1, devices=1, default_root_dir=folder, enable_model_summary=False, **options
        )
        trainer.fit(Classifier(lr=1e-3), loader)


if __name__ == "__main__":
    main()
