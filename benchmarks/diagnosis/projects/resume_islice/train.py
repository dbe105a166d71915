"""Goes on after a checkpoint in the middle of an epoch."""
import argparse
import json
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

from corpus import Documents


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=4096, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, 1)

    def forward(self, ids):
        time.sleep(0.055)  # accelerator
        return self.head(self.embedding(ids[:, ::16])).pow(2).mean()


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-per-epoch", type=int, default=1400)
    parser.add_argument("--resume-step", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=8)
    return parser.parse_args()


def load_state(folder):
    return json.loads((folder / "trainer_state.json").read_text())["global_step"]


def main():
    args = parse_args()
    set_seed(1)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Documents(args.steps_per_epoch * args.batch_size), batch_size=args.batch_size, shuffle=True, num_workers=2
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": args.resume_step}))
        done = load_state(folder)

    model.train()
    for step, ids in enumerate(islice(loader, done, None), start=done):
        with accelerator.accumulate(model):
            loss = model(ids)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if step % 50 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
