"""Rows that a server sends a while after they were asked for, then unpacked."""

import socket
import struct
import threading
import time

import torch
from options import loader_for, options, train
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


if __name__ == "__main__":
    chosen = options(batch_size=8, step_ms=12.0)
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listening,), daemon=True).start()
    port = listening.getsockname()[1]
    train(loader_for(Distant(chosen.steps * chosen.batch_size, port), chosen), chosen)
