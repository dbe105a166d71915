"""Train a recommender; the profiles of a batch of users come from a service, in one request."""

import multiprocessing
import time
from multiprocessing.connection import Client, Listener
from threading import Thread

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

torch.set_num_threads(1)

USERS, NUMBERS = 1_920, 64


def answer(connection):
    """Send the profiles of the users asked for."""
    profiles = np.random.default_rng(0).normal(size=(USERS, NUMBERS)).astype(np.float32)
    while True:
        users = connection.recv()
        time.sleep(0.1)  # the service asks its own database
        connection.send(profiles[users])


def serve(address):
    """Take connections, as the profile service does, and say where."""
    with Listener(("127.0.0.1", 0)) as listener:
        address.send(listener.address)
        while True:
            Thread(target=answer, args=(listener.accept(),), daemon=True).start()


class Profiles(Dataset):
    """Users; a whole batch of them is fetched at a time."""

    def __init__(self, address):
        self.address, self.service = address, None

    def __len__(self):
        return USERS

    def __getitems__(self, users):
        """Return several samples."""
        if self.service is None:
            self.service = Client(self.address)
        self.service.send(users)
        profiles = self.service.recv()  # at fault
        clicked = np.random.default_rng(users[0]).integers(0, 10, len(users))
        return list(zip(torch.from_numpy(profiles), clicked.tolist(), strict=True))


def main():
    """Train three epochs."""
    ours, theirs = multiprocessing.Pipe()
    service = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    service.start()
    data = Profiles(ours.recv())
    batches = BatchSampler(RandomSampler(data), batch_size=32, drop_last=True)
    loader = DataLoader(data, batch_sampler=batches, num_workers=2, persistent_workers=True)
    model = Network(step_ms=18).to(DEVICE)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(3):
        total = 0.0
        for profiles, clicked in loader:
            loss = nn.functional.cross_entropy(model(profiles.to(DEVICE)), clicked.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}")
    service.terminate()


if __name__ == "__main__":
    main()
