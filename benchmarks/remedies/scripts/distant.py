"""Rows that a server sends a while after they were asked for, then unpacked.

By hand, the training loop makes its batches itself; else a loader does.
"""

import argparse
import socket
import struct
import threading
import time

import torch
from options import loader_for, parser, train
from torch.utils.data import Dataset

LATENCY_S = 0.005


def answer(connection):
    """Answer one client, each time after the way there and back."""
    with connection:
        while connection.recv(8):
            time.sleep(LATENCY_S * chosen.effort)
            connection.sendall(bytes(4096))


def serve(server):
    """Accept clients."""
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()


class Distant(Dataset):
    """Rows of a distant table."""

    def __init__(self, count, port):
        self.count, self.port, self.connection = count, port, None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port))
        self.connection.sendall(struct.pack("<q", index))
        data = bytearray()
        while len(data) < 4096:
            data += self.connection.recv(4096 - len(data))
        return torch.frombuffer(data, dtype=torch.uint8).float().sort().values, index % 10


def batches(data, size):
    """Yield batches as they are asked for, without a loader."""
    for first in range(0, len(data), size):
        samples = [data[index] for index in range(first, first + size)]
        yield torch.stack([row for row, _ in samples]), torch.tensor([y for _, y in samples])


if __name__ == "__main__":
    arguments = parser(batch_size=8, step_ms=12.0)
    arguments.add_argument("--by-hand", action=argparse.BooleanOptionalAction)
    chosen = arguments.parse_args()
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listening,), daemon=True).start()
    data = Distant(chosen.steps * chosen.batch_size, listening.getsockname()[1])
    by_hand = batches(data, chosen.batch_size) if chosen.by_hand else None
    train(by_hand or loader_for(data, chosen), chosen)
