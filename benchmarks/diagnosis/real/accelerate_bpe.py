import argparse
import json
import time
from collections import Counter
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, Dataset


def learn_merges(texts, count):
    words = Counter(word for text in texts for word in text.split())
    splits = {word: list(word) for word in words}
    merges = {}
    for rank in range(count):
        pairs = Counter()
        for word, times in words.items():
            for pair in zip(splits[word], splits[word][1:], strict=False):
                pairs[pair] += times
        best = pairs.most_common(1)[0][0]
        merges[best] = rank
        splits = {word: merge(parts, best) for word, parts in splits.items()}
    return merges


def merge(parts, pair):
    merged, i = [], 0
    while i < len(parts):
        if tuple(parts[i : i + 2]) == pair:
            merged.append(parts[i] + parts[i + 1])
            i += 2
        else:
            merged.append(parts[i])
            i += 1
    return merged


class BytePairEncoder:
    def __init__(self, merges):
        self.merges = merges
        symbols = sorted({symbol for pair in merges for symbol in (*pair, "".join(pair))})
        self.ids = {symbol: number for number, symbol in enumerate(symbols, 2)}

    def encode(self, text):
        ids = []
        for word in text.split():
            parts = list(word)
            while len(parts) > 1:
                pairs = zip(parts, parts[1:], strict=False)
                best = min(pairs, key=lambda pair: self.merges.get(pair, 1_000_000))
                if best not in self.merges:
                    break
                parts = merge(parts, best)
            ids.extend(self.ids.get(part, 1) for part in parts)
        return ids


class ReviewDataset(Dataset):
    def __init__(self, rows, encoder, max_length, *, tokenize_first):
        self.rows, self.encoder, self.max_length = rows, encoder, max_length
        self.encoded = [encoder.encode(row["text"]) for row in rows] if tokenize_first else None

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        ids = self.encoded[index] if self.encoded else self.encoder.encode(row["text"])
        ids = ids[: self.max_length]
        padded = torch.zeros(self.max_length, dtype=torch.long)
        padded[: len(ids)] = torch.tensor(ids)
        return {"input_ids": padded, "labels": row["rating"]}


class Classifier(nn.Module):
    def __init__(self, vocabulary, hidden=32):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, hidden, mode="mean")
        self.head = nn.Linear(hidden, 5)

    def forward(self, input_ids):
        return self.head(self.embedding(input_ids))


def training_function(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed)
    lines = Path(args.train_file).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][: args.max_train_samples]
    encoder = BytePairEncoder(learn_merges([row["text"] for row in rows[:20]], 40))
    dataset = ReviewDataset(rows, encoder, 384, tokenize_first=args.tokenize_first)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, drop_last=True)
    model = Accelerated(Classifier(len(encoder.ids) + 2), step_ms=12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    started, samples = time.perf_counter(), 0
    for epoch in range(args.num_epochs):
        model.train()
        total_loss = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"])
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            samples += len(batch["labels"])
        accelerator.print(f"epoch {epoch}: loss {total_loss.item() / len(loader):.4f}")
    accelerator.print(f"{samples / (time.perf_counter() - started):.1f} samples/s")


def main():
    parser = argparse.ArgumentParser(description="Train a classifier of reviews")
    parser.add_argument("--train-file", required=True)
    parser.add_argument("--max-train-samples", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=2)
    parser.add_argument("--num-epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenize-first", action="store_true")
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
