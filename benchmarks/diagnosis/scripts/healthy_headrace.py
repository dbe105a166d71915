"""Train with headrace's own loader."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import TensorDataset

import headrace


def main():
    """Train."""
    data = TensorDataset(torch.randn(3200, 64), torch.randint(0, 10, (3200,)))
    loader = headrace.DataLoader(data, batch_size=32, shuffle=True, num_workers=2)
    model = Network(step_ms=35).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
