import time

import torch.nn as nn


class Tiny(nn.Module):
    def __init__(self, nc=12, device_seconds=0.03):
        super().__init__()
        self.device_seconds = device_seconds
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 5, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, nc)
        )

    def forward(self, x):
        time.sleep(self.device_seconds)  # stands for the accelerator
        return self.model(x)
