import random
import time

import torch.nn as nn


class Detector(nn.Module):
    def __init__(self, classes=6, device_seconds=0.055, noise=0.25, seed=0):
        super().__init__()
        self.device_seconds, self.noise = device_seconds, noise
        self.chance = random.Random(seed)
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes))

    def forward(self, x):
        area = (x.shape[-1] / 64) ** 2
        time.sleep(self.device_seconds * area * self.chance.lognormvariate(0, self.noise))  # stands for the accelerator
        return self.head(self.backbone(x.float().div(255)))
