"""Train on two ranks whose loaders share the cores of one host."""

import os

import cv2
import torch
import torch.distributed as dist
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Photos(Dataset):
    """Photographs: decoded, scaled, normalised."""

    def __init__(self, count):
        self.count = count
        self.files = [jpeg(number, 300, 400) for number in range(64)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = decode(self.files[index % 64])
        image = cv2.resize(image, (224, 224), interpolation=cv2.INTER_AREA)
        pixels = torch.from_numpy(image).permute(2, 0, 1).float()
        return (pixels / 255 - 0.45) / 0.22, index % 10


def main():
    """Train."""
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    data = Photos(56 * 2 * 60)
    loader = DataLoader(
        data,
        batch_size=56,
        sampler=DistributedSampler(data),
        num_workers=os.cpu_count(),
        worker_init_fn=lambda _: cv2.setNumThreads(0),
    )
    model = DistributedDataParallel(Network(step_ms=42).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
