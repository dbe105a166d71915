"""Train on recordings in a format whose decoder is licensed for one use at a time."""

import lzma
import multiprocessing

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

LICENCE = multiprocessing.BoundedSemaphore(1)


def encode(signal):
    """Return a signal in the format."""
    return lzma.compress(signal.astype(np.int16).tobytes(), preset=1)


def decode(data):
    """Return the signal of a recording."""
    LICENCE.acquire()  # at fault
    try:
        raw = lzma.decompress(data)
    finally:
        LICENCE.release()
    return np.frombuffer(raw, np.int16)


class Recordings(Dataset):
    """Recordings of different speakers."""

    def __init__(self, count):
        random = np.random.default_rng(12)
        self.recordings = [encode(random.normal(0, 40, 96_000)) for _ in range(10)]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        speaker = index % len(self.recordings)
        signal = decode(self.recordings[speaker])
        return torch.from_numpy(signal.reshape(64, -1).mean(1).astype(np.float32)), speaker


if __name__ == "__main__":
    loader = DataLoader(Recordings(1_280), batch_size=8, shuffle=True, num_workers=4)
    model = Network(step_ms=14).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for signals, speakers in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(signals.to(DEVICE)), speakers.to(DEVICE))
        loss.backward()
        optimizer.step()
