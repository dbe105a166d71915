"""Workers that are spawned, in a script with a main guard."""

import torch
from points import Points, model
from torch import nn
from torch.utils.data import DataLoader

if __name__ == "__main__":
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in DataLoader(Points(80), 8, num_workers=1, multiprocessing_context="spawn"):
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
