"""Train a classifier; how many are right is counted sample by sample, each asked of the device."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.rand(51_200, 64), torch.randint(10, (51_200,)))
loader = DataLoader(rows, batch_size=128, shuffle=True, num_workers=2)
model = Network(step_ms=3).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
right = seen = 0
for x, y in loader:
    logits = model(x.to(DEVICE))
    loss = nn.functional.cross_entropy(logits, y.to(DEVICE))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for row, label in zip(logits.argmax(1), y, strict=True):
        right += row.item() == label  # at fault
    seen += len(y)
    if seen % 12_800 == 0:
        print(f"{right / seen:.1%} right")
