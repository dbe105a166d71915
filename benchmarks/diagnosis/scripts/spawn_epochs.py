"""Train a few epochs with workers that are spawned."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    """Train."""
    data = TensorDataset(torch.randn(960, 64), torch.randint(0, 10, (960,)))
    loader = DataLoader(
        data, batch_size=32, shuffle=True, num_workers=2, multiprocessing_context="spawn"
    )
    model = Network(step_ms=25).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _epoch in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
