"""Train on two ranks with shards of different sizes; the one that ends first joins in."""

import torch
import torch.distributed as dist
from emulated import DEVICE, Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main():
    """Train."""
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    samples = 3840 if dist.get_rank() == 0 else 2880
    data = TensorDataset(torch.randn(samples, 64), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=1)
    model = DistributedDataParallel(Network(step_ms=30).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with model.join():
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
