"""Ray Data: the batches of two epochs come from Ray's own processes."""

import time

import numpy as np
import ray
import torch
from points import model
from torch import nn


def make(batch):  # in a process of Ray's, which needs no torch for it
    time.sleep(0.02)
    return {"x": np.ones((len(batch["id"]), 16), np.float32), "y": batch["id"] % 3}


ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
data = ray.data.range(160).map_batches(make, batch_size=16)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    for batch in data.iter_torch_batches(batch_size=8, prefetch_batches=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
        optimizer.step()
