"""Train on two ranks."""

import torch
import torch.distributed as dist
from emulated import DEVICE, Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    """Train."""
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    data = TensorDataset(torch.randn(3200, 64), torch.randint(0, 10, (3200,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 16, sampler=sampler, num_workers=1, persistent_workers=True)
    model = DistributedDataParallel(Network(step_ms=40).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
