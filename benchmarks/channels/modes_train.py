"""Trains on a channel of images under SageMaker's contract, on an emulated device.

    headrace run --contract sagemaker --channel train=URL [--input-mode MODE] modes_train.py RATE

It names the channel's folder and knows nothing of modes. A step takes BATCH / RATE seconds, in
which the process sleeps.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

import headrace
from headrace.transforms import OnMembers, RandomResizedCrop

BATCH, WORKERS, EPOCHS = 64, 2, 3


def main() -> None:
    """Train, and print when each epoch's first step and last step ended."""
    rate = float(sys.argv[1])
    torch.set_num_threads(1)
    dataset = headrace.ShardDataset(
        os.environ["SM_CHANNEL_TRAIN"], transform=OnMembers("jpg", RandomResizedCrop(224))
    )
    loader = headrace.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True)
    for epoch in range(EPOCHS):
        began_s = time.time()
        first_s = None
        for batch in loader:
            time.sleep(len(batch["cls"]) / rate)
            first_s = first_s or time.time()
        result = {"epoch": epoch, "first_s": first_s, "seconds": time.time() - began_s}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
