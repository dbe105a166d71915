import time

import lightning as L
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze = nn.Linear(3 * 16 * 16, 32)
        self.expand = nn.Linear(32, 3 * 16 * 16)

    def forward(self, x):
        time.sleep(0.025)  # the device
        return self.expand(torch.relu(self.squeeze(x.flatten(1)))).view_as(x)


class LitAutoencoder(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.net = Autoencoder()

    def training_step(self, batch, batch_idx):
        pictures, _ = batch
        return nn.functional.mse_loss(self.net(pictures), pictures)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)
