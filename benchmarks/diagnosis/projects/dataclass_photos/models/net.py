import time

import torch.nn as nn


class PhotoNet(nn.Module):
    def __init__(self, classes, device_seconds):
        super().__init__()
        self.device_seconds = device_seconds
        self.features = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())
        self.classify = nn.Linear(72, classes)

    def forward(self, x):
        time.sleep(self.device_seconds)  # stands for the accelerator
        return self.classify(self.features(x))
