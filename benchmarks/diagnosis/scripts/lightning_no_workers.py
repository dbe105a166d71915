"""Train with Lightning; the loader has no workers."""

import logging
import tempfile

import cv2
import lightning
import torch
from emulated import Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset

cv2.setNumThreads(0)


class Photos(Dataset):
    """Photographs: decoded and scaled."""

    def __init__(self):
        self.files = [jpeg(number, 240, 320) for number in range(48)]

    def __len__(self):
        return 3200

    def __getitem__(self, index):
        image = cv2.resize(decode(self.files[index % 48]), (256, 256))
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255, index % 10


class Classifier(lightning.LightningModule):
    """A network and how it is trained."""

    def __init__(self):
        super().__init__()
        self.net = Network(step_ms=22)

    def training_step(self, batch, _index):
        """Return the loss of a batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    """Train."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_steps=90,
            accelerator="auto",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=folder,
        )
        trainer.fit(Classifier(), DataLoader(Photos(), batch_size=16))


if __name__ == "__main__":
    main()
