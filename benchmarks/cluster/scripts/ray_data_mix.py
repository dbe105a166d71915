"""The same work by Ray Data: `--cpus` tasks at a time prepare batches, one process takes them."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import ray

PREPARE_S = 0.040


def prepare(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take as long over a batch as the loader's workers do."""
    time.sleep(PREPARE_S * len(batch["id"]))
    images = np.empty((len(batch["id"]), 3, 32, 32), np.uint8)
    images[:] = (batch["id"] % 251)[:, None, None, None]
    return {"image": images}


def main() -> None:
    """Run the epochs, and print each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    ray.init(num_cpus=options.cpus, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    blocks = options.samples // (4 * options.batch)
    samples = ray.data.range(options.samples, override_num_blocks=blocks)
    prepared = samples.map_batches(prepare, batch_size=options.batch, num_cpus=1)
    for epoch in range(options.epochs):
        began_s, count = time.perf_counter(), 0
        for batch in prepared.iter_torch_batches(batch_size=options.batch):
            count += len(batch["image"])
        took_s = time.perf_counter() - began_s
        print(json.dumps({"epoch": epoch, "samples": count, "seconds": took_s}), flush=True)


if __name__ == "__main__":
    main()
