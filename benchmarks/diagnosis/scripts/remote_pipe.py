"""Train on a stream that another program copies from a slow disk into a pipe."""

import subprocess
import sys

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

SAMPLE_BYTES = 49_152
# Copies at 6 MB/s, as a throttled volume would.
COPY = """
import sys, time
chunk = bytes(49152)
while True:
    time.sleep(0.008)
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
"""


class Stream(IterableDataset):
    """Samples of fixed size from a command's output."""

    def __init__(self, command, count):
        self.command, self.count = command, count

    def __iter__(self):
        with subprocess.Popen(self.command, stdout=subprocess.PIPE) as process:
            for number in range(self.count):
                record = process.stdout.read(SAMPLE_BYTES)  # at fault
                pixels = np.frombuffer(record, np.uint8).astype(np.float32)
                yield torch.from_numpy(pixels), number % 10
            process.kill()


stream = Stream([sys.executable, "-c", COPY], 448)
model = Network(step_ms=25).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
for x, y in DataLoader(stream, batch_size=8, num_workers=1):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
    loss.backward()
    optimizer.step()
