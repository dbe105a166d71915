import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from engine.registry import MODELS


@MODELS.register
class QueueEncoder(nn.Module):
    """Contrastive learning with a queue of negatives (MoCo, small)."""

    def __init__(self, dim, queue_size, device_seconds, temperature=0.2):
        super().__init__()
        self.device_seconds, self.temperature = device_seconds, temperature
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, dim)
        )
        self.register_buffer("queue", F.normalize(torch.randn(dim, queue_size), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        self.sample_negatives = 512

    def forward(self, query, key):
        time.sleep(self.device_seconds)  # stands for the accelerator
        q = F.normalize(self.net(query), dim=1)
        with torch.no_grad():
            k = F.normalize(self.net(key), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        start = int(torch.randint(self.queue.shape[1] - self.sample_negatives, (1,)))
        negative = q @ self.queue[:, start : start + self.sample_negatives]
        logits = torch.cat([positive, negative], 1) / self.temperature
        target = torch.zeros(len(q), dtype=torch.long)
        return {"loss": F.cross_entropy(logits, target), "keys": k}

    @torch.no_grad()
    def enqueue(self, keys):
        at = int(self.pointer)
        n = min(len(keys), self.queue.shape[1] - at)
        self.queue[:, at : at + n] = keys[:n].T
        self.pointer[0] = (at + n) % self.queue.shape[1]
