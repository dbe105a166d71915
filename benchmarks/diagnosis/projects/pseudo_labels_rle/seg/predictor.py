import time

import torch
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        time.sleep(0.06)  # a device
        return ((x.float() + self.bias) / 64).long().to(torch.uint8)


class Predictor:
    """Iterates over (names, masks)."""

    def __init__(self, model, loader):
        self.model, self.loader = model.eval(), loader

    def __iter__(self):
        for batch in self.loader:
            with torch.inference_mode():
                masks = self.model(batch["image"])
            yield batch["name"], masks.numpy()
