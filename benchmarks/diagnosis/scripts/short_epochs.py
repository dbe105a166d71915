"""Train many short epochs on a small data set."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(480, 64), torch.randint(0, 10, (480,)))
loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=4)
model = Network(step_ms=15).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _epoch in range(8):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
