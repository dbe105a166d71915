"""Streams reviews by Hugging Face's datasets into two workers."""
import json
import os
import random
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader


def records(files):
    for file in files:
        with open(file) as lines:
            for line in lines:
                yield json.loads(line)


def write_reviews(folder, rows):
    pick = random.Random(0)
    words = ["".join(pick.choices("aeioubcdfghklmnprstvw", k=pick.randint(3, 9))) for _ in range(3000)]
    path = os.path.join(folder, "reviews.jsonl")
    with open(path, "w") as out:
        for _ in range(rows):
            out.write(json.dumps({"text": " ".join(pick.choices(words, k=350)), "score": pick.random()}) + "\n")
    return path


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 1)

    def forward(self, x):
        time.sleep(0.015)  # the device
        return self.net(x).squeeze(-1)


def main(folder, epochs=2, rows=3200):
    os.environ["HF_DATASETS_CACHE"] = os.path.join(folder, "cache")
    from datasets import IterableDataset
    from textfeatures import featurize

    torch.set_num_threads(1)
    file = write_reviews(folder, rows)
    stream = IterableDataset.from_generator(records, gen_kwargs={"files": [file]})
    stream = stream.map(featurize, remove_columns=["text", "score"]).with_format("torch")
    loader = DataLoader(stream, batch_size=16, num_workers=2)
    model = Regressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        for batch in loader:
            loss = (model(batch["x"]) - batch["y"]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
