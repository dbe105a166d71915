"""The same batches as plain Ray objects, from an actor on another host, four under way."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import ray

SHAPE = (64, 3, 224, 224)
UNDER_WAY = 4


class Source:
    """Has a batch, and gives it as often as it is asked."""

    def __init__(self) -> None:
        self._batch = np.random.default_rng(0).integers(0, 255, SHAPE, dtype=np.uint8)

    def get(self) -> np.ndarray:
        """Return the batch."""
        return self._batch


def main() -> None:
    """Run epochs; tell of each how many images came, and what it cost this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    ray.init(logging_level="ERROR", log_to_driver=False)
    placed = ray.remote(Source).options(label_selector={"headrace.group": "cpu"}, num_cpus=1)
    sources = [placed.remote() for _ in range(2)]
    for epoch in range(options.epochs):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        under_way = [sources[each % 2].get.remote() for each in range(UNDER_WAY)]
        for number in range(options.batches):
            ready, under_way = ray.wait(under_way, num_returns=1)
            assert ray.get(ready[0]).shape == SHAPE
            under_way.append(sources[number % 2].get.remote())
        told = {
            "epoch": epoch,
            "samples": options.batches * SHAPE[0],
            "seconds": time.perf_counter() - began_s,
            "cpu_seconds": time.process_time() - cpu_s,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
