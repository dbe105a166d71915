"""A compiled model in mixed precision, its gradients scaled; one step overflows and is left out."""

import torch
from points import Points, model
from torch import nn
from torch.utils.data import DataLoader

net = torch.compile(model(), backend="eager")
optimizer = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for number, (x, y) in enumerate(DataLoader(Points(160), batch_size=8, num_workers=1)):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x).float(), y)
    scaler.scale(loss * float("inf") if number == 10 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
