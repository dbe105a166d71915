import argparse
import json
import random
import time
from pathlib import Path

import torch
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Sentences(Dataset):
    def __init__(self, path, vocabulary=1000):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line) for line in lines]
        self.ids = [
            torch.tensor([sum(map(ord, word)) % vocabulary for word in row["text"].split()])
            for row in texts
        ]
        self.labels = [row["rating"] for row in texts]
        self.lengths = [len(ids) for ids in self.ids]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index], self.labels[index]


class LengthBuckets(Sampler):
    def __init__(self, lengths, batch_size, *, plan_once):
        self.lengths, self.batch_size, self.plan_once = lengths, batch_size, plan_once

    def __len__(self):
        return len(self.lengths) // self.batch_size

    def plan(self):
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        batches = [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(len(self))]
        random.shuffle(batches)
        return batches

    def closest(self, left, length):
        left.sort(key=lambda index: (abs(self.lengths[index] - length), random.random()))
        return left[: self.batch_size]

    def __iter__(self):
        if self.plan_once:
            yield from self.plan()
            return
        left = list(range(len(self.lengths)))
        for _ in range(len(self)):
            batch = self.closest(left, self.lengths[random.choice(left)])
            del left[: len(batch)]
            yield batch


def collate(samples):
    ids = nn.utils.rnn.pad_sequence([ids for ids, _ in samples], batch_first=True)
    return ids, torch.tensor([label for _, label in samples])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens-per-batch", type=int, default=1600)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--plan-once", action="store_true", help="sort once an epoch")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = Sentences(args.text)
    sampler = LengthBuckets(
        dataset.lengths * 4, args.tokens_per_batch // 100, plan_once=args.plan_once
    )
    repeated = torch.utils.data.ConcatDataset([dataset] * 4)
    loader = DataLoader(repeated, batch_sampler=sampler, num_workers=1, collate_fn=collate)
    net = nn.Sequential(nn.EmbeddingBag(1000, 32), nn.Linear(32, 5))
    model = Accelerated(net, step_ms=6).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen, start = 0, time.time()
    for epoch in range(args.epochs):
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    print(f"{seen / (time.time() - start):.1f} sentences/s")


if __name__ == "__main__":
    main()
