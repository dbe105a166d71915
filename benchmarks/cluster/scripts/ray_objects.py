"""The same batches as Ray objects, from actors on another host, four under way.

The training process gets them itself; or with `--slots` as our proxy would: a process beside it
holds the Ray driver, and copies each into shared memory that is used again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory

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


def objects() -> Iterator[np.ndarray]:
    """Give batches of the other host as they come, without an end."""
    ray.init(logging_level="ERROR", log_to_driver=False)
    placed = ray.remote(Source).options(label_selector={"headrace.group": "cpu"}, num_cpus=1)
    sources = [placed.remote() for _ in range(2)]
    under_way = [sources[each % 2].get.remote() for each in range(UNDER_WAY)]
    while True:
        for source in sources:
            ready, under_way = ray.wait(under_way, num_returns=1)
            yield ray.get(ready[0])
            under_way.append(source.get.remote())


def receive(names: list[str], to_training: Connection) -> None:
    """Copy batches into the slots of these names as they are free; report each that is full."""
    slots = [SharedMemory(name) for name in names]
    arrays = [np.ndarray(SHAPE, np.uint8, slot.buf) for slot in slots]
    for count, batch in enumerate(objects()):
        number = count if count < UNDER_WAY else to_training.recv()
        if number is None:
            return
        arrays[number][:] = batch
        to_training.send(number)


@contextmanager
def slots() -> Iterator[Iterator[np.ndarray]]:
    """Give batches out of the slots that a proxy fills."""
    context = multiprocessing.get_context("fork")  # Source stays a class of __main__
    ours, theirs = context.Pipe()
    memory = [SharedMemory(create=True, size=int(np.prod(SHAPE))) for _ in range(UNDER_WAY)]
    proxy = context.Process(target=receive, args=([each.name for each in memory], theirs))
    proxy.start()
    theirs.close()  # else its end would not be noticed

    def batches() -> Iterator[np.ndarray]:
        while True:
            number = ours.recv()
            yield np.ndarray(SHAPE, np.uint8, memory[number].buf)
            ours.send(number)

    try:
        yield batches()
    finally:
        ours.send(None)
        proxy.join()
        for each in memory:
            each.unlink()


def main() -> None:
    """Run epochs; print of each how many images came, and what it cost this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--slots", action="store_true", help="have a proxy beside this process")
    options = parser.parse_args()
    if not options.slots:
        print_epochs(objects(), options)
        return
    with slots() as batches:
        print_epochs(batches, options)


def print_epochs(batches: Iterator[np.ndarray], options: argparse.Namespace) -> None:
    """Take the epochs' batches, and print what they cost."""
    for epoch in range(options.epochs):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(options.batches):
            assert next(batches).shape == SHAPE
        result = {
            "epoch": epoch,
            "samples": options.batches * SHAPE[0],
            "seconds": time.perf_counter() - began_s,
            "cpu_seconds": time.process_time() - cpu_s,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
