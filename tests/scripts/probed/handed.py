"""Takes a loader's batches in other threads than the one that trains, in a way that is named."""

import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import headrace

EPOCHS, BATCHES, SIZE = 2, 6, 4


class Rows(Dataset):
    def __len__(self):
        return BATCHES * SIZE

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 2


class Background(threading.Thread):
    """Fills a queue from a loader, as generators in the background do."""

    def __init__(self, loader):
        super().__init__(daemon=True)
        self.queue, self.loader = queue.Queue(2), loader
        self.start()

    def run(self):
        for batch in self.loader:
            self.queue.put(batch)
        self.queue.put(None)

    def __iter__(self):
        return iter(self.queue.get, None)


def by_future(loader):
    with ThreadPoolExecutor(1) as pool:
        batches = iter(loader)
        future = pool.submit(next, batches, None)
        while (batch := future.result()) is not None:
            future = pool.submit(next, batches, None)
            yield batch


def by_two_threads(loader):
    """The second one makes other objects of the batches."""
    made = queue.Queue(1)

    def make():
        for x, y in Background(loader):
            made.put({"x": x * 2, "y": y})
        made.put(None)

    threading.Thread(target=make, daemon=True).start()
    for batch in iter(made.get, None):
        yield batch["x"], batch["y"]


def by_polling(loader):
    """Neither side waits for the other for long."""
    made = queue.Queue(1)

    def put(item):
        while True:
            try:
                return made.put(item, timeout=0.001)
            except queue.Full:
                pass

    def make():
        for batch in loader:
            put(batch)
        put(None)

    threading.Thread(target=make, daemon=True).start()
    while True:
        try:
            batch = made.get(timeout=0.001)
        except queue.Empty:
            continue
        if batch is None:
            return
        yield batch


def by_chunks(loader):
    made = queue.Queue(2)

    def make():
        batches = iter(loader)
        for _ in range(BATCHES // 2):
            made.put([next(batches), next(batches)])
        made.put(None)

    threading.Thread(target=make, daemon=True).start()
    for chunk in iter(made.get, None):
        yield from chunk


def by_queue_beside_another(loader):
    """The other queue's items have as many parts as a batch has samples."""
    made, notes = queue.Queue(2), queue.Queue()

    def make():
        for number, batch in enumerate(loader):
            notes.put((number, 0.5, "a", None))
            made.put(batch)
        made.put(None)

    threading.Thread(target=make, daemon=True).start()
    for batch in iter(made.get, None):
        notes.get()
        yield batch


LASTING = queue.Queue(2)


def by_lasting_queue(loader):
    """One thread goes through all epochs."""

    def make():
        for _ in range(EPOCHS):
            for batch in loader:
                LASTING.put(batch)
            LASTING.put(None)

    if not any(thread.name == "lasting" for thread in threading.enumerate()):
        threading.Thread(target=make, name="lasting", daemon=True).start()
    yield from iter(LASTING.get, None)


def by_filter(loader):
    """Every other batch loses a sample on its way."""
    made = queue.Queue(2)

    def make():
        for number, (x, y) in enumerate(loader):
            left = SIZE - number % 2
            made.put((x[:left], y[:left]))
        made.put(None)

    threading.Thread(target=make, daemon=True).start()
    yield from iter(made.get, None)


way = sys.argv[1]
kind = headrace.DataLoader if way == "own" else DataLoader
workers = 0 if way == "unworked" else 2
loader = kind(Rows(), batch_size=SIZE, num_workers=workers)
ways = {
    "future": by_future,
    "two": by_two_threads,
    "polled": by_polling,
    "chunks": by_chunks,
    "beside": by_queue_beside_another,
    "lasting": by_lasting_queue,
    "filter": by_filter,
}
hand_on = ways.get(way, Background)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(EPOCHS):
    for x, y in hand_on(loader):
        if way == "inference":
            with torch.no_grad():
                model(x)
            continue
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
