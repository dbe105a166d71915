import argparse
import json
import time
from pathlib import Path

import torch
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __init__(self, path):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        self.texts = [json.loads(line)["text"] for line in lines]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


class HashTokenizer:
    def __init__(self, size=4096, length=128):
        self.size, self.length = size, length

    def __call__(self, texts):
        rows = [
            [sum(map(ord, word)) % self.size for word in text.split()][: self.length]
            for text in texts
        ]
        padded = torch.zeros(len(rows), self.length, dtype=torch.long)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = torch.tensor(row)
        return padded


class Encoder(nn.Module):
    def __init__(self, size=4096, width=48):
        super().__init__()
        self.embedding = nn.EmbeddingBag(size, width, padding_idx=0)
        self.dense = nn.Linear(width, width)

    def forward(self, ids):
        return nn.functional.normalize(torch.tanh(self.dense(self.embedding(ids))), dim=-1)


@torch.no_grad()
def encode(model, loader, device):
    return torch.cat([model(ids.to(device)).cpu() for ids in loader])


def main():
    parser = argparse.ArgumentParser(description="Embed a corpus and look for near duplicates")
    parser.add_argument("corpus")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threshold", type=float, default=0.98)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Documents(args.corpus),
        batch_size=args.batch_size,
        num_workers=1,
        collate_fn=HashTokenizer(),
    )
    model = Accelerated(Encoder(), step_ms=40).to(device).eval()
    start = time.time()
    embeddings = encode(model, loader, device)
    print(f"{len(embeddings) / (time.time() - start):.1f} documents/s")
    similar = (embeddings @ embeddings.T > args.threshold).sum().item() - len(embeddings)
    print(f"{similar // 2} near duplicates")


if __name__ == "__main__":
    main()
