"""Train with Accelerate on the periodicity of utterances, found by autocorrelation."""

from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from emulated import Network
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


@dataclass(frozen=True)
class Config:
    """How to train."""

    steps: int = 140
    batch_size: int = 12
    rate: int = 16_000
    samples: int = 8_000
    lowest_hz: int = 60
    highest_hz: int = 400


class Utterances(Dataset):
    """Voices of different pitch, each as its strength at 64 periods."""

    def __init__(self, config):
        self.config = config
        noise = np.random.default_rng(11)
        times = np.arange(config.samples) / config.rate
        self.signals = [
            sum(np.sin(2 * np.pi * hertz * part * times) / part for part in range(1, 6))
            + noise.normal(0, 0.3, config.samples)
            for hertz in range(90, 250, 10)
        ]
        self.lags = np.geomspace(
            config.rate / config.highest_hz, config.rate / config.lowest_hz, 64
        ).astype(int)

    def __len__(self):
        return self.config.steps * self.config.batch_size

    def __getitem__(self, index):
        label = index % len(self.signals)
        signal = np.append(self.signals[label][:1], np.diff(self.signals[label]))
        whole = np.correlate(signal, signal, mode="full")  # at fault
        strength = whole[len(signal) - 1 + self.lags] / whole[len(signal) - 1]
        return torch.from_numpy(strength.astype(np.float32)), label % 10


def main(config):
    """Train one epoch."""
    accelerator = Accelerator()
    network = Network(step_ms=14)
    model, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.AdamW(network.parameters(), lr=1e-3),
        DataLoader(Utterances(config), config.batch_size, shuffle=True, num_workers=2),
    )
    model.train()
    for strength, label in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(strength), label))
        optimizer.step()


if __name__ == "__main__":
    main(Config())
