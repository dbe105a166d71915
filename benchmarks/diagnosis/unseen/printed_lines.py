"""Train a reader of printed text on lines that are rendered on the way, worn and stained."""

import argparse
import random
import string

import numpy as np
import torch
from emulated import DEVICE, Network
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_num_threads(1)


class PrintedLines(IterableDataset):
    """Pictures of random text; each worker has seeds of its own."""

    def __init__(self, count, size=(320, 48)):
        self.count, self.size = count, size
        self.font = ImageFont.load_default(24)

    def __iter__(self):
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for seed in range(first, self.count, every):
            source = random.Random(seed)
            text = "".join(source.choices(string.ascii_letters, k=16))
            yield self.tensor(self.worn(self.render(text), source)), seed % 10

    def render(self, text):
        """Return a picture of the text."""
        line = Image.new("L", self.size, 255)
        ImageDraw.Draw(line).text((8, 8), text, fill=0, font=self.font)
        return line

    def worn(self, line, source):
        """Return the picture, askew, with ink that has bled."""
        line = line.rotate(source.uniform(-2, 2), fillcolor=255)
        line = line.filter(ImageFilter.ModeFilter(9))  # at fault
        return line.point(lambda ink: min(ink + 20, 255))

    @staticmethod
    def tensor(line):
        """Return it as numbers from 0 to 1."""
        return torch.from_numpy(np.asarray(line, np.float32) / 255)


def parse():
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=2_560)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args()


def main(options):
    """Train once over the lines."""
    loader = DataLoader(
        PrintedLines(options.lines), options.batch_size, num_workers=2, prefetch_factor=4
    )
    model = Network(step_ms=14).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.5)
    for lines, labels in loader:
        loss = nn.functional.cross_entropy(model(lines.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    main(parse())
