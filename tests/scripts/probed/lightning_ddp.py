"""Lightning starts the second rank itself; the loader is made before the ranks meet.

Gradients are accumulated over two batches, and each epoch ends with a validation.
"""

import lightning
import torch
from points import Points, model
from torch import nn
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


loader = DataLoader(Points(160), 8, num_workers=1)
held_out = DataLoader(Points(48), 8)

if __name__ == "__main__":
    lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    ).fit(Module(), loader, held_out)
