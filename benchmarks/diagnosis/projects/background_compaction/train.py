"""Trains while earlier runs' logs are packed in the background."""
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from sounds import Spectrograms

BATCH = 16


def start_compaction(folder, shards=5):
    tool = Path(__file__).resolve().parent / "tools" / "compact.py"
    return [subprocess.Popen([sys.executable, str(tool), f"{folder}/log-{n:02d}.bz2"]) for n in range(shards)]


def batch_cost(data):
    """What a batch takes one worker while nothing else runs."""
    costs = []
    for _ in range(5):
        began = time.perf_counter()
        [data[i] for i in range(BATCH)]
        costs.append(time.perf_counter() - began)
    return min(costs)


class Tagger(nn.Module):
    def __init__(self, device_s):
        super().__init__()
        self.device_s = device_s
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        time.sleep(self.device_s)  # an accelerator that one worker feeds with some to spare
        return self.head(x)


def main(steps):
    torch.set_num_threads(1)
    data = Spectrograms(steps * BATCH)
    model = Tagger(1.2 * batch_cost(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data, BATCH, num_workers=1)
    with tempfile.TemporaryDirectory() as folder:
        background = start_compaction(folder)
        try:
            for step, x in enumerate(loader):
                loss = model(x).logsumexp(-1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        finally:
            for process in background:
                process.terminate()
            for process in background:
                process.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 320)
