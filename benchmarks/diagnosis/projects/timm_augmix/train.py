"""Fine-tunes with timm's loaders and transforms only: AugMix, and the loader that keeps its workers."""
import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.data import create_dataset, create_loader
from torch import nn

from engine import train_one_epoch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=16)
parser.add_argument("--aa", default="augmix-m5-w4-d2")
parser.add_argument("-j", "--workers", type=int, default=2)
parser.add_argument("-b", "--batch-size", type=int, default=16)


def write_pictures(root, classes=2, each=128):
    rng = np.random.default_rng(0)
    for name in range(classes):
        folder = Path(root) / "train" / f"class_{name}"
        folder.mkdir(parents=True)
        for n in range(each):
            small = Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8))
            small.resize((256, 256), Image.BICUBIC).save(folder / f"{n:04d}.jpg", quality=85)


class Backbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(3 * 14 * 14, classes)

    def forward(self, x):
        time.sleep(0.03)  # the accelerator's share
        return self.fc(x[:, :, ::16, ::16].flatten(1))


def main():
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as root:
        write_pictures(root)
        dataset_train = create_dataset("", root=root, split="train", is_training=True)
        loader_train = create_loader(
            dataset_train,
            input_size=(3, 224, 224),
            batch_size=args.batch_size,
            is_training=True,
            auto_augment=args.aa,
            num_workers=args.workers,
            device=device,
            use_prefetcher=False,
            use_multi_epochs_loader=True,
        )
        model = Backbone(2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for epoch in range(args.epochs):
            train_one_epoch(epoch, model, loader_train, optimizer, nn.CrossEntropyLoss(), device)


if __name__ == "__main__":
    main()
