"""Train on batches that a thread receives from a store and puts into a queue."""

import queue
import threading

import numpy as np
import torch
from emulated import DEVICE, Network
from servers import row_store
from socket_rows import RowClient
from torch import nn

STEPS = 80


def receive(port, batches):
    """Fill the queue."""
    client = RowClient(port)
    for _ in range(STEPS):
        rows = [np.frombuffer(client.get(number), np.uint8) for number in range(16)]
        batches.put(torch.from_numpy(np.stack(rows)))


def main():
    """Train."""
    model = Network(step_ms=15).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    batches = queue.Queue(maxsize=4)
    with row_store(latency_s=0.003) as port:
        threading.Thread(target=receive, args=(port, batches), daemon=True).start()
        for _ in range(STEPS):
            x = batches.get()  # at fault
            y = torch.randint(0, 10, (len(x),))
            loss = nn.functional.cross_entropy(model(x.to(DEVICE) / 255), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
