"""Reads epochs of a dataset and writes down each sample: the script that the faults happen to.

    python reader.py URL --epochs 2 --workers 2

Writes `ledger.json` into its working directory (of rank n: `rank-n/`), also after an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist
from ledger import digest_of

import headrace
from headrace import HeadraceError


def main() -> None:
    """Read, write the ledger, and exit with 1 where Headrace raised an error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache")
    parser.add_argument("--step-ms", type=float, default=0.0, help="what a training step takes")
    parser.add_argument("--max-bad-rate", type=float, default=0.001)
    parser.add_argument("--pause-after", type=int, default=-1, help="batches; then wait for `go`")
    options = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    ledger = {"epochs": [], "seconds": [], "waits_s": [], "error": "", "message": ""}
    try:
        read(options, ledger)
    except HeadraceError as error:
        ledger |= {"error": type(error).__name__, "message": str(error)}
    folder = Path(f"rank-{os.environ['RANK']}") if "RANK" in os.environ else Path()
    folder.mkdir(exist_ok=True)
    (folder / "ledger.json").write_text(json.dumps(ledger))
    sys.exit(1 if ledger["error"] else 0)


def read(options: argparse.Namespace, ledger: dict) -> None:
    """Read all epochs."""
    dataset = headrace.ShardDataset(
        options.url, cache_dir=options.cache, max_bad_rate=options.max_bad_rate
    )
    loader = headrace.DataLoader(
        dataset, options.batch, shuffle=True, seed=options.seed, num_workers=options.workers
    )
    for _ in range(options.epochs):
        epoch: list[tuple[str, str]] = []
        ledger["epochs"].append(epoch)
        began_s = asked_s = time.perf_counter()
        for batch in loader:
            ledger["waits_s"].append(time.perf_counter() - asked_s)
            images = map(digest_of, batch["jpg"].numpy())
            epoch.extend(zip(batch["__key__"], images, strict=True))
            time.sleep(options.step_ms / 1000)  # the device works
            if dist.is_initialized():
                dist.barrier()  # as ranks that exchange gradients
            if len(ledger["waits_s"]) == options.pause_after:
                pause()
            asked_s = time.perf_counter()
        ledger["seconds"].append(time.perf_counter() - began_s)


def pause() -> None:
    """Say that the moment is there, and wait until the benchmark has done its harm."""
    Path("paused").touch()
    while not Path("go").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
