"""Data parallel training: one process a rank, launched with two."""
import argparse
import tempfile
import time

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from data.shapes import make_loader
from engine import dist
from engine.loop import say, train_one_epoch
from utils.visual import PanelWriter


class ShapeNet(nn.Module):
    def __init__(self, device_seconds):
        super().__init__()
        self.device_seconds = device_seconds
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(32, 2)
        )

    def forward(self, x):
        time.sleep(self.device_seconds)  # stands for the accelerator
        return self.net(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1920)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--panel-every", type=int, default=1, help="steps; 0: no panels")
    parser.add_argument("--device-seconds", type=float, default=0.03)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = dist.setup()
    loader, sampler = make_loader(args.images, args.batch_size, rank, world, args.workers)
    model = ShapeNet(args.device_seconds)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    with tempfile.TemporaryDirectory(prefix="panels_") as folder:
        panels = PanelWriter(folder, args.panel_every)
        samples = step = 0
        start = time.time()
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            n, step = train_one_epoch(model, loader, optimizer, epoch, panels, step)
            samples += n * world
        say(f"rate: {samples / (time.time() - start):.1f} samples/s")
        say("done")
    dist.cleanup()


if __name__ == "__main__":
    main()
