"""Train a classifier; how many are right is counted sample by sample, each asked of the device.

With `--every N` they are counted in one step of N.
"""

import argparse
import time

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, default=1)
options = parser.parse_args()
rows = TensorDataset(torch.rand(51_200, 64), torch.randint(10, (51_200,)))
loader = DataLoader(rows, batch_size=128, shuffle=True, num_workers=2)
model = Network(step_ms=3).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
right = seen = 0
for step, (x, y) in enumerate(loader):
    if step == 10:
        began = time.perf_counter()
    logits = model(x.to(DEVICE))
    loss = nn.functional.cross_entropy(logits, y.to(DEVICE))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % options.every:
        continue
    for row, label in zip(logits.argmax(1), y, strict=True):
        right += row.item() == label  # at fault
    seen += len(y)
    if seen % 12_800 == 0:
        print(f"{right / seen:.1%} right")
loss.item()  # the device has done its work
print(f"{128 * (step - 9) / (time.perf_counter() - began):.1f} rows/s")
