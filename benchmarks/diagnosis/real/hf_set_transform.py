import argparse
import hashlib
import time

import datasets
import torch
from datasets import load_dataset
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader

datasets.disable_progress_bars()


def character_ngrams(text, smallest=2, largest=6, buckets=512):
    counts = [0.0] * buckets
    for size in range(smallest, largest + 1):
        for start in range(len(text) - size + 1):
            gram = text[start : start + size].encode()
            counts[int.from_bytes(hashlib.blake2b(gram, digest_size=4).digest()) % buckets] += 1.0
    return counts


def preprocess(examples):
    features = [character_ngrams(text) for text in examples["text"]]
    return {"features": features, "labels": examples["rating"]}


def lazily(examples):
    ready = preprocess(examples)
    return {
        "features": [torch.tensor(row) for row in ready["features"]],
        "labels": ready["labels"],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--max_train_samples", type=int, default=800)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--preprocess_once", action="store_true", help="map, not set_transform")
    args = parser.parse_args()

    dataset = load_dataset("json", data_files={"train": args.train_file}, split="train")
    dataset = dataset.select(range(args.max_train_samples))
    if args.preprocess_once:
        dataset = dataset.map(preprocess, batched=True, remove_columns=dataset.column_names)
        dataset = dataset.with_format("torch")
    else:
        dataset.set_transform(lazily)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        drop_last=True,
        persistent_workers=args.num_workers > 0,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(nn.Linear(512, 16), nn.ReLU(), nn.Linear(16, 5))
    model = Accelerated(net, step_ms=12).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    start = time.perf_counter()
    for epoch in range(args.num_epochs):
        for batch in loader:
            logits = model(batch["features"].to(device))
            loss = nn.functional.cross_entropy(logits, batch["labels"].to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}: {loss.item():.4f}")
    samples = args.num_epochs * len(loader) * args.batch_size
    print(f"{samples / (time.perf_counter() - start):.1f} samples/s")


if __name__ == "__main__":
    main()
