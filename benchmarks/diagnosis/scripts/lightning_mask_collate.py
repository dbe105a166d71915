"""Train with Lightning; the collate function masks tokens, one by one."""

import logging
import random
import tempfile

import lightning
import torch
from emulated import Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    """Sequences of token numbers."""

    def __len__(self):
        return 32 * 400

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(5, 30_000, (512,), generator=generator)


def mask_collate(samples):
    """Mask a share of the tokens of each sequence."""
    batch = []
    for sample in samples:
        tokens = sample.clone()
        for place in range(len(tokens)):
            if random.random() < 0.15:  # at fault
                tokens[place] = 3  # at fault
        batch.append(tokens)
    return torch.stack(batch), torch.stack(samples)[:, 0] % 10


class Model(lightning.LightningModule):
    """A network and how it is trained."""

    def __init__(self):
        super().__init__()
        self.net = Network(step_ms=3)

    def training_step(self, batch, _index):
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.net(batch[0] / 30_000), batch[1])

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-4)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as root:
        lightning.Trainer(
            max_steps=200, devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, default_root_dir=root,
        ).fit(
            Model(),
            DataLoader(Tokens(), batch_size=64, num_workers=2, collate_fn=mask_collate),
        )  # fmt: skip
