"""Train on two ranks, each on every second batch of a loader that makes all of them."""

import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from emulated import DEVICE, Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Spectra(Dataset):
    """Spectra of noise, in bands."""

    def __len__(self):
        return 6400

    def __getitem__(self, number):
        signal = np.random.default_rng(number).normal(size=(24, 2048))
        power = np.abs(np.fft.rfft(signal)).mean(0)[:1024].reshape(64, 16).mean(1)
        return torch.from_numpy(np.log(power)).float(), number % 10


def main():
    """Train; with `--own` each rank makes its own batches alone."""
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    data, own = Spectra(), "--own" in sys.argv
    sampler = DistributedSampler(data) if own else None
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(Network(step_ms=20).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = time.perf_counter()
    for number, (x, y) in enumerate(loader):
        if not own and number % world != rank:  # at fault
            continue
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"{6400 / (time.perf_counter() - began):.1f} spectra/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
