"""Sharded models over gloo, FSDP2 and then FSDP1; one rank is slower, the other waits for it."""

import torch
from points import busy
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.data import DataLoader, TensorDataset


def train(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(96, 16)), batch_size=8):
        busy(0.05 if distributed.get_rank() == 1 else 0.0)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        distributed.all_reduce(torch.ones(1))  # the script's own, such as of a metric


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
sharded = layers()
fully_shard(sharded[0], mesh=mesh)
train(fully_shard(sharded, mesh=mesh))
train(FullyShardedDataParallel(layers(), device_mesh=mesh, device_id=torch.device("cpu")))
distributed.destroy_process_group()
