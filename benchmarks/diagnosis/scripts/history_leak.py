"""Train and keep what each step saw, for a look afterwards."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    """Train."""
    data = TensorDataset(torch.randn(12800, 64), torch.randint(0, 10, (12800,)))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)
    model = Network(step_ms=28).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append({"loss": loss, "activations": x.repeat(1, 200)})  # at fault
    print(f"{len(history)} steps")


if __name__ == "__main__":
    main()
