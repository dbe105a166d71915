"""Train on two ranks, each with its own half of a corpus; the second half has the long texts."""

import torch
import torch.distributed as dist
from emulated import DEVICE, Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    """Texts as counts of their letters."""

    def __init__(self, count, letters):
        self.count, self.letters = count, letters

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        text = "headrace " * (self.letters // 9)
        counts = [0] * 64
        for letter in text:  # at fault
            counts[ord(letter) % 64] += 1  # at fault
        return torch.tensor(counts, dtype=torch.float32), index % 10


dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
texts = Texts(1600, 600 if dist.get_rank() == 0 else 80_000)
loader = DataLoader(texts, batch_size=16, num_workers=1)
model = DistributedDataParallel(Network(step_ms=20).to(DEVICE))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
