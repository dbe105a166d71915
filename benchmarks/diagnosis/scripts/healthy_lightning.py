"""Train with Lightning, with a validation at the end of each epoch."""

import logging
import tempfile

import lightning
import torch
from emulated import Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """A network and how it is trained."""

    def __init__(self):
        super().__init__()
        self.net = Network(step_ms=35)

    def training_step(self, batch, _index):
        """Return the loss of a batch."""
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _index):
        """Note the loss of a batch."""
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def rows(count):
    """Return a data set of so many rows."""
    return TensorDataset(torch.randn(count, 64), torch.randint(0, 10, (count,)))


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as root:
        trainer = lightning.Trainer(
            max_epochs=2, devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, default_root_dir=root,
        )  # fmt: skip
        train = DataLoader(rows(1600), 32, num_workers=2, persistent_workers=True)
        trainer.fit(Classifier(), train, DataLoader(rows(320), 32))
