"""DistributedDataParallel over gloo; one rank is slower, the other waits for it."""

import torch
from points import Points, busy, model
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler

distributed.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = Points(320)
for x, y in DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1):
    busy(0.02 if distributed.get_rank() == 1 else 0.0)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
distributed.destroy_process_group()
