"""Trains for a while, and writes down when each batch came, what was in it, and who made it."""

from __future__ import annotations

import argparse
import functools
import json
import time
from pathlib import Path

import psutil
from torch.utils.data import DataLoader, Dataset

PREPARE_S = 0.040


@functools.cache
def own_address() -> str:
    """Return the address of the host that this process is on."""
    return next(each.address for each in psutil.net_if_addrs()["eth0"] if "." in each.address)


class Samples(Dataset):
    """Samples that take a while, and return on which host they were made."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, str]:
        time.sleep(PREPARE_S)
        return index, own_address()


def main() -> None:
    """Iterate over epochs until the time is over or a file named `enough` is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ledger", type=Path, required=True)
    options = parser.parse_args()
    loader = DataLoader(
        Samples(options.samples), options.batch, shuffle=True, num_workers=options.workers
    )
    enough = options.ledger.with_name("enough")
    with options.ledger.open("w", buffering=1) as ledger:
        for epoch in range(1_000_000):
            for indices, hosts in loader:
                entry = {"time": time.time(), "epoch": epoch, "indices": indices.tolist(),
                        "hosts": list(hosts)}  # fmt: skip
                ledger.write(json.dumps(entry) + "\n")
            if enough.exists():
                return


if __name__ == "__main__":
    main()
