"""Train on what customers have bought before, looked up in a table of receipts."""

import numpy as np
import pandas as pd
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)

CUSTOMERS = 4_000


def receipts(count):
    """Return a table of receipts, the oldest first."""
    random = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "customer": [f"C{number:06}" for number in random.integers(0, CUSTOMERS, count)],
            "amount": random.gamma(2, 20, count).astype(np.float32),
            "items": random.integers(1, 30, count),
        }
    )


class Histories(Dataset):
    """The last purchases of one customer a sample."""

    def __init__(self, table, length=32):
        self.table, self.length = table, length
        self.names = sorted(table["customer"].unique())

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        bought = self.table[self.table["customer"] == self.names[index]]  # at fault
        recent = bought[["amount", "items"]].tail(self.length).to_numpy(np.float32)
        history = np.zeros((self.length, 2), np.float32)
        history[: len(recent)] = recent / (50, 15)
        return {"history": torch.from_numpy(history), "churned": index % 2}


class Trainer:
    """Trains a model and measures it."""

    def __init__(self, model, lr):
        self.model = model.to(DEVICE)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def loss(self, batch):
        """Return the loss of a batch."""
        logits = self.model(batch["history"].to(DEVICE))
        return nn.functional.cross_entropy(logits, batch["churned"].to(DEVICE))

    def fit(self, loader):
        """Train one epoch."""
        self.model.train()
        for batch in loader:
            self.optimizer.zero_grad()
            self.loss(batch).backward()
            self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, loader):
        """Return the mean loss."""
        self.model.eval()
        return float(np.mean([self.loss(batch).item() for batch in loader]))


if __name__ == "__main__":
    train, test = random_split(Histories(receipts(600_000)), [0.95, 0.05])
    trainer = Trainer(Network(step_ms=12), lr=0.01)
    trainer.fit(DataLoader(train, batch_size=16, shuffle=True, num_workers=2))
    print(f"loss {trainer.evaluate(DataLoader(test, batch_size=50, num_workers=2)):.3f}")
