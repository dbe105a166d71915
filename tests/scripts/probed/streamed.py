"""A WebDataset pipeline."""

import sys

import torch
import webdataset
from points import busy, model
from torch import nn


def decode(sample):
    busy(0.005)
    return torch.full((16,), 1.0), int(sample["cls"])


class Slowed:
    def __call__(self, pair):
        busy(0.001)
        return pair


dataset = webdataset.WebDataset([sys.argv[1]] * 2, shardshuffle=False)
dataset = dataset.map(decode).map(Slowed()).batched(8)
net = model()
optimizer = torch.optim.AdamW(net.parameters())
for x, y in webdataset.WebLoader(dataset, batch_size=None, num_workers=2):
    nn.functional.cross_entropy(net(x), torch.as_tensor(y)).backward()
    optimizer.step()
    optimizer.zero_grad()
