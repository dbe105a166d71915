import time

import torch.nn as nn


class GlyphNet(nn.Module):
    def __init__(self, n_classes=8, device_seconds=0.03):
        super().__init__()
        self.device_seconds = device_seconds
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(4)
        )
        self.head = nn.Linear(8 * 16, n_classes)

    def forward(self, x):
        time.sleep(self.device_seconds)  # stands for the accelerator
        return self.head(self.stem(x).flatten(1))
