"""Train on graphs: each batch is a list of many small tensors."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    """Graphs: nodes, edges and weights of each."""

    def __init__(self):
        self.nodes = torch.randn(64, 40)
        self.edges = torch.randint(0, 40, (64, 2, 90))

    def __len__(self):
        return 2880

    def __getitem__(self, index):
        at = index % 64
        nodes = self.nodes[at]
        parts = {f"part_{part}": nodes[: part + 2].clone() for part in range(6)}
        return {"nodes": nodes, "edges": self.edges[at], "label": index % 10, **parts}


def main():
    """Train one epoch."""
    loader = DataLoader(Graphs(), batch_size=48, num_workers=2, collate_fn=list)
    model = Network(step_ms=8, features=40).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for graphs in loader:
        x = torch.stack([graph["nodes"] for graph in graphs]).to(DEVICE)
        y = torch.tensor([graph["label"] for graph in graphs]).to(DEVICE)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
