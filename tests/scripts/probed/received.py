"""Samples that come over connections: plain ones, read as a file, and encrypted."""

import socket
import ssl
import threading
from functools import cache

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 100_000


@cache
def secured(side: int) -> ssl.SSLContext:
    """Return settings that need no certificate."""
    context = ssl.SSLContext(side)
    if side == ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


def serve(listener: socket.socket, *, tls: bool) -> None:
    """Give a sample to whoever connects; nothing is received here."""
    while True:
        connection, _ = listener.accept()
        if tls:
            connection = secured(ssl.PROTOCOL_TLS_SERVER).wrap_socket(connection, server_side=True)
        connection.sendall(bytes(SIZE))
        connection.close()


def listening(*, tls: bool) -> tuple[str, int]:
    """Start a server; return its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), kwargs={"tls": tls}, daemon=True).start()
    return listener.getsockname()


class Received(Dataset):
    """Three samples in turn, each received in another way."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.plain, self.tls = listening(tls=False), listening(tls=True)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        way = ("parts", "file", "tls")[index % 3]
        with socket.create_connection(self.tls if way == "tls" else self.plain) as connection:
            data = self.read(connection, way)
        return torch.full((16,), float(len(data))), index % 3

    def read(self, connection: socket.socket, way: str) -> bytes:
        """Return all that comes."""
        if way == "file":
            with connection.makefile("rb") as file:
                return file.read()
        if way == "tls":
            with secured(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(connection) as secure:
                return self.parts(secure)
        return self.parts(connection)

    def parts(self, connection: socket.socket) -> bytes:
        """Return all that comes, received part by part, into memory that is there already."""
        data, buffer = bytearray(), bytearray(30_000)
        while len(data) < SIZE:
            count = connection.recv_into(buffer)
            data += buffer[:count]
            data += connection.recv(1000)
        return bytes(data)


if __name__ == "__main__":
    net = nn.Linear(16, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for workers in (2, 0):
        for x, y in DataLoader(Received(480), batch_size=6, num_workers=workers):
            assert (x == SIZE).all()
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x / SIZE), y).backward()
            optimizer.step()
