"""Fine-tune on photographs, with one worker."""

import argparse

import cv2
import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Photographs: decoded, flipped, scaled."""

    def __init__(self, count):
        self.count = count
        self.files = [jpeg(number, 300, 400) for number in range(64)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = decode(self.files[index % 64])
        if index % 2:
            image = cv2.flip(image, 1)
        image = cv2.resize(image, (224, 224), interpolation=cv2.INTER_AREA)
        return torch.from_numpy(image).permute(2, 0, 1).float().div(255), index % 10


def run(args):
    """Train for some epochs."""
    loader = DataLoader(
        Photos(args.samples),
        batch_size=args.batch_size,
        num_workers=1,
        persistent_workers=True,
        worker_init_fn=lambda _: cv2.setNumThreads(0),
    )
    model = Network(step_ms=24).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=3240)
    parser.add_argument("--batch-size", type=int, default=36)
    parser.add_argument("--epochs", type=int, default=1)
    run(parser.parse_args())
