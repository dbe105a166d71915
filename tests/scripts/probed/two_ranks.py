"""DDP over gloo, then sharded models, FSDP2 and FSDP1; one rank is slower, the other waits for it.

All in one process group: a second one at torchrun's store may meet the addresses of the first.
"""

import time

import torch
from points import Points, model
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train_replicated(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = Points(320)
    for x, y in DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1):
        time.sleep(0.02 if distributed.get_rank() == 1 else 0.0)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def train_sharded(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(96, 16)), batch_size=8):
        time.sleep(0.05 if distributed.get_rank() == 1 else 0.0)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        distributed.all_reduce(torch.ones(1))  # the script's own, such as of a metric


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


distributed.init_process_group("gloo")
train_replicated(nn.parallel.DistributedDataParallel(model()))
mesh = init_device_mesh("cpu", (2,))
sharded = layers()
fully_shard(sharded[0], mesh=mesh)
train_sharded(fully_shard(sharded, mesh=mesh))
train_sharded(FullyShardedDataParallel(layers(), device_mesh=mesh, device_id=torch.device("cpu")))
distributed.destroy_process_group()
