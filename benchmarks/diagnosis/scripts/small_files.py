"""Train on thumbnails that lie on a network share, one small file each."""

import numpy as np
import torch
from emulated import DEVICE, Network
from late_files import late_files
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Thumbnails(Dataset):
    """Pixels of one file a sample."""

    def __init__(self, paths, count):
        self.paths, self.count = paths, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with self.paths[index % len(self.paths)].open("rb") as file:  # at fault
            data = file.read()  # at fault
        pixels = np.frombuffer(data, np.uint8)
        return torch.from_numpy(pixels.astype(np.float32)), index % 10


def main():
    """Train one epoch."""
    with late_files(128, latency_s=0.008) as paths:
        loader = DataLoader(Thumbnails(paths, 800), batch_size=8, num_workers=2)
        model = Network(step_ms=15).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE) / 255), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
