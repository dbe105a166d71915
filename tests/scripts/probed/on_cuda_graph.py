"""Trains on a CUDA device by replaying a graph of the whole step, as torch documents it."""

import torch
from points import Points
from torch import nn
from torch.utils.data import DataLoader

net = nn.Sequential(nn.Linear(16, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 3)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
static_x = torch.zeros(8, 16, device="cuda")
static_y = torch.zeros(8, dtype=torch.long, device="cuda")

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(static_x), static_y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = nn.functional.cross_entropy(net(static_x), static_y)
    loss.backward()
    optimizer.step()

for _ in range(2):
    for x, y in DataLoader(Points(320), 8, num_workers=1, pin_memory=True):
        static_x.copy_(x, non_blocking=True)
        static_y.copy_(y, non_blocking=True)
        graph.replay()
torch.cuda.synchronize()
