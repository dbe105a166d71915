import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Recommender(nn.Module):
    def __init__(self, items, width):
        super().__init__()
        self.items = nn.Embedding(items, width, sparse=True)
        self.score = nn.Linear(width, 1)

    def forward(self, history):
        return self.score(self.items(history).mean(1)).squeeze(1)


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def save_checkpoint(state, is_best, folder):
    filename = Path(folder) / "checkpoint.pth.tar"
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, Path(folder) / "model_best.pth.tar")


def train(loader, model, criterion, optimizer, device):
    losses = AverageMeter()
    model.train()
    for history, bought in loader:
        history, bought = history.to(device), bought.to(device)
        loss = criterion(model(history), bought)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(history))
    return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--save-freq", type=int, default=1, help="epochs; 0: never")
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = Accelerated(Recommender(args.items, args.width), step_ms=25).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.resume:
        model.load_state_dict(torch.load(args.resume)["state_dict"])
    histories = torch.randint(0, args.items, (1280, 20))
    dataset = TensorDataset(histories, torch.randint(0, 2, (1280,)).float())
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True
    )
    criterion = nn.BCEWithLogitsLoss()
    best, samples, start = float("inf"), 0, time.time()
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            losses = train(loader, model, criterion, optimizer, device)
            samples += losses.count
            is_best, best = losses.avg < best, min(losses.avg, best)
            print(f"Epoch {epoch}: loss {losses.avg:.4f}")
            if args.save_freq and (epoch + 1) % args.save_freq == 0:
                state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "best": best}
                save_checkpoint(state, is_best, folder)
    print(f"{samples / (time.time() - start):.1f} samples/s")


if __name__ == "__main__":
    main()
