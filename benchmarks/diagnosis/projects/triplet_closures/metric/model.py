import time

import torch.nn as nn
import torch.nn.functional as F


def build_embedder(dim, device_seconds=0.03):
    net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, dim))

    def on_device(module, inputs):
        time.sleep(device_seconds)  # stands for the accelerator

    net.register_forward_pre_hook(on_device)
    return net


def triplet_loss(a, p, n, margin=0.2):
    return F.relu((a - p).pow(2).sum(1) - (a - n).pow(2).sum(1) + margin).mean()
