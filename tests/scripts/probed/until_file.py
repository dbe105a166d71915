"""Trains until a file appears, and writes down how many steps it has made."""

import sys
import time
from pathlib import Path

from points import Descent, Points, model
from torch import nn
from torch.utils.data import DataLoader

ending, counted = Path(sys.argv[1]), Path(sys.argv[2])
draft = counted.with_suffix(".draft")
net = model()
optimizer = Descent(net.parameters())
steps = 0
while not ending.exists():
    for x, y in DataLoader(Points(1600, busy_s=0.0002), batch_size=8, num_workers=1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        time.sleep(0.008)  # the accelerator
        steps += 1
        draft.write_text(str(steps))
        draft.replace(counted)
        if ending.exists():
            break
