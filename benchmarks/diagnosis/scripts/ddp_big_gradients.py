"""Train a wide network on two ranks with small batches."""

import torch
import torch.distributed as dist
from emulated import DEVICE, Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Recommender(nn.Module):
    """A large table of items beside a small network."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(120_000, 64)
        self.network = Network(step_ms=20)

    def forward(self, item, x):
        """Return the logits."""
        return self.network(x + self.items(item))


def main():
    """Train."""
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    torch.set_num_threads(1)
    data = TensorDataset(
        torch.randint(0, 120_000, (1600,)), torch.randn(1600, 64), torch.randint(0, 10, (1600,))
    )
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), num_workers=1)
    model = DistributedDataParallel(Recommender().to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for item, x, y in loader:
        loss = nn.functional.cross_entropy(model(item.to(DEVICE), x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
