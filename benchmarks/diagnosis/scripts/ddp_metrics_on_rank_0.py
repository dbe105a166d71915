"""Train on two ranks; the first one keeps count of every prediction."""

import torch
import torch.distributed as dist
from emulated import DEVICE, Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def update(table, logits, labels):
    """Count which class was taken for which."""
    for row, label in zip(logits, labels, strict=True):
        for threshold in range(28):
            scores = row.softmax(0)
            table[label][threshold] += int((scores > threshold / 28).sum())  # at fault


def main():
    """Train."""
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(7680, 64), torch.randint(0, 10, (7680,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(Network(step_ms=20).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    table = [[0] * 28 for _ in range(10)]
    for x, y in loader:
        logits = model(x.to(DEVICE))
        loss = nn.functional.cross_entropy(logits, y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            update(table, logits.detach(), y.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
