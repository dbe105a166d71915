"""Train on photographs in a list, without a DataLoader."""

import random

import cv2
import numpy as np
import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn

cv2.setNumThreads(0)
noise = np.random.default_rng(0)
files = [jpeg(number) for number in range(128)]
model = Network(step_ms=15).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _step in range(90):
    chosen = random.sample(range(len(files)), 32)
    images = [decode(files[number]) for number in chosen]
    noisy = [image + noise.normal(0, 4, image.shape) for image in images]  # at fault
    x = torch.from_numpy(np.stack(noisy)[:, :, :, 0] / 255)
    y = torch.tensor(chosen) % 10
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
    loss.backward()
    optimizer.step()
