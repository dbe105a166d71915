"""Train on objects that are fetched one by one over HTTP."""

import http.client

import numpy as np
import torch
from emulated import DEVICE, Network
from servers import object_store
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Objects(Dataset):
    """Objects of a store on this host."""

    def __init__(self, port, count):
        self.port, self.count = port, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/train/{index}")
        response = connection.getresponse()  # at fault
        data = response.read()
        connection.close()
        pixels = np.frombuffer(data, np.uint8)
        return torch.from_numpy(pixels.astype(np.float32)), index % 10


def main():
    """Train one epoch."""
    with object_store(latency_s=0.015) as port:
        data = Objects(port, 480)
        loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
        model = Network(step_ms=20).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE) / 255), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
