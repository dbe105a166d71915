"""Train on tensors in memory, without a DataLoader."""

import torch
from emulated import DEVICE, Network
from torch import nn

x_train, y_train = torch.randn(20_000, 64), torch.randint(0, 10, (20_000,))
model = Network(step_ms=30).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(110):
    chosen = torch.randint(0, len(x_train), (64,))
    x, y = x_train[chosen].to(DEVICE), y_train[chosen].to(DEVICE)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
