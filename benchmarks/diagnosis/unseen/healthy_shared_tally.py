"""Train on events in compressed files of JSON; workers keep count of them together."""

import gzip
import json
import multiprocessing
import tempfile
from pathlib import Path

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_num_threads(1)

FILES, EVENTS, EPOCHS = 4, 400, 5


class Events(IterableDataset):
    """Events of files, of which each worker reads every second."""

    def __init__(self, paths):
        self.paths = paths
        self.seen = multiprocessing.Value("q", 0)

    def __iter__(self):
        worker = get_worker_info()
        for path in self.paths[worker.id :: worker.num_workers]:
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    event = json.loads(line)
                    with self.seen.get_lock():
                        self.seen.value += 1
                    yield torch.tensor(event["values"]), event["kind"]


def write_events(folder):
    """Write the files and return where they are."""
    paths = [Path(folder) / f"events-{number}.jsonl.gz" for number in range(FILES)]
    for number, path in enumerate(paths):
        values = torch.randn(EVENTS, 512, generator=torch.Generator().manual_seed(number))
        with gzip.open(path, "wt") as file:
            for kind, row in enumerate(values.tolist()):
                file.write(
                    json.dumps({"kind": kind % 10, "values": [round(value, 3) for value in row]})
                    + "\n"
                )
    return paths


with tempfile.TemporaryDirectory() as root:
    events = Events(write_events(root) * EPOCHS)
    loader = DataLoader(events, batch_size=32, num_workers=2)
    model = Network(step_ms=40).to(DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for values, kinds in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(values.to(DEVICE)), kinds.to(DEVICE))
        loss.backward()
        optimizer.step()
    print(f"{events.seen.value} events")
