"""Train on windows of a vibration record that is mapped into memory."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


@dataclass(frozen=True)
class Options:
    """How to train."""

    windows: int = 3_200
    length: int = 65_536
    batch_size: int = 16
    workers: int = 1


class Windows(Dataset):
    """Windows of the record: how strong each band is, in acceleration and in velocity."""

    def __init__(self, path, options):
        self.path, self.options = path, options
        self.record = None
        self.taper = np.hanning(options.length)

    def __len__(self):
        return self.options.windows

    def __getitem__(self, index):
        if self.record is None:
            self.record = np.load(self.path, mmap_mode="r")
        start = index * 331 % (len(self.record) - self.options.length)
        raw = self.record[start : start + self.options.length].astype(np.float64)
        acceleration = (raw - raw.mean()) / (raw.std() + 1e-9)
        velocity = np.cumsum(acceleration)
        velocity -= np.linspace(velocity[0], velocity[-1], len(velocity))
        peaks = np.maximum.accumulate(np.abs(acceleration))
        bands = [self.bands(acceleration), self.bands(velocity), peaks[:: len(peaks) // 32]]
        return torch.from_numpy(np.concatenate(bands).astype(np.float32)), index % 10

    def bands(self, signal):
        """Return the logarithm of the power in 32 bands."""
        spectrum = np.fft.rfft(signal * self.taper)[1:]
        power = spectrum.real**2 + spectrum.imag**2
        return np.log1p(power).reshape(32, -1).mean(1)


def train(path, options):
    """Train one epoch."""
    loader = DataLoader(
        Windows(path, options), options.batch_size, shuffle=True, num_workers=options.workers
    )
    model = Network(step_ms=16).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for bands, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(bands.to(DEVICE)), labels.to(DEVICE))
        loss.backward()
        optimizer.step()


def main():
    """Write a record and train on it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bearing.npy"
        noise = np.random.default_rng(9).normal(0, 2_000, 2_000_000)
        np.save(path, noise.astype(np.int16))
        train(path, Options())


if __name__ == "__main__":
    main()
