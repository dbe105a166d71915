import argparse
import time

import numpy as np
import torch
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_split(count, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    centres = torch.randn(classes, 64, generator=torch.Generator().manual_seed(0))
    inputs = centres[labels] + torch.randn(count, 64, generator=generator)
    return TensorDataset(inputs, labels)


class EmbeddingNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x):
        return nn.functional.normalize(self.layers(x), dim=1)


def triplet_loss(embeddings, labels, margin=0.2):
    distances = torch.cdist(embeddings, embeddings)
    same = labels[:, None] == labels[None, :]
    hardest_positive = (distances * same).max(dim=1).values
    hardest_negative = (distances + 10.0 * same).min(dim=1).values
    return nn.functional.relu(hardest_positive - hardest_negative + margin).mean()


def average_precision(relevant):
    hits, total = 0, 0.0
    for position, is_relevant in enumerate(relevant, start=1):
        if is_relevant:
            hits += 1
            total += hits / position
    return total / max(hits, 1)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    embeddings, labels = [], []
    for inputs, targets in loader:
        embeddings.append(model(inputs.to(device)).cpu())
        labels.append(targets)
    embeddings, labels = torch.cat(embeddings), torch.cat(labels).numpy()
    order = (embeddings @ embeddings.T).argsort(dim=1, descending=True).numpy()
    scores = []
    for query, ranking in enumerate(order):
        ranking = ranking[ranking != query]
        scores.append(average_precision(labels[ranking] == labels[query]))
    model.train()
    return float(np.mean(scores))


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = make_split(args.train_size, args.classes, 1)
    val_set = make_split(args.val_size, args.classes, 2)
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=1,
        drop_last=True,
        persistent_workers=True,
    )
    val_loader = DataLoader(val_set, batch_size=128)
    model = Accelerated(EmbeddingNet(), step_ms=25).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    started, best, trained = time.time(), 0.0, 0
    for epoch in range(1, args.epochs + 1):
        for inputs, labels in train_loader:
            loss = triplet_loss(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trained += len(inputs)
        message = f"[{epoch:02d}/{args.epochs}] loss {loss.item():.4f}"
        if args.eval_freq and epoch % args.eval_freq == 0:
            score = evaluate(model, val_loader, device)
            best = max(best, score)
            message += f" mAP {score:.4f} (best {best:.4f})"
        print(message)
    print(f"{trained / (time.time() - started):.1f} samples/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Metric learning")
    parser.add_argument("--train-size", type=int, default=1600)
    parser.add_argument("--val-size", type=int, default=2400)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--eval-freq", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
