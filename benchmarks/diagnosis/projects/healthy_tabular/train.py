"""A network for a table that fits in memory, on the CPU; reports, probes, evaluates and saves."""
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.inner(self.norm(x))


class TabularNet(nn.Module):
    def __init__(self, columns=64, width=1024, depth=2):
        super().__init__()
        self.stem = nn.Linear(columns, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def main(epochs=6):
    torch.manual_seed(0)
    x = torch.randn(4320, 64)
    y = x[:, :8].sum(1) + 0.1 * torch.randn(len(x))
    train_set, valid_set = random_split(TensorDataset(x, y), [3840, 480])
    train_loader = DataLoader(train_set, batch_size=48, shuffle=True)
    valid_loader = DataLoader(valid_set, batch_size=48)
    model = TabularNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    history, best = [], float("inf")
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(epochs):
            for step, (features, target) in enumerate(train_loader):
                loss = nn.functional.mse_loss(model(features), target)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                history.append(loss.item())
                if step % 10 == 0:
                    print(f"{epoch} {step} {sum(history[-10:]) / len(history[-10:]):.4f}", flush=True)
            score = evaluate(model, valid_loader)
            if score < best:
                best = score
                torch.save(model.state_dict(), Path(folder) / "best.pt")
            probe, _ = next(iter(valid_loader))
            print(f"epoch {epoch}: validation {score:.4f}, probe {probe.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
