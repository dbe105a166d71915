"""Train scene segmentation, on one rank or on several: an ordinary script with a loader of its own.

Its loader prepares each scene with all cores, which is harmless where one rank has the host alone.
The accelerator is emulated: a step waits as it would for a device.
"""

import argparse
import os
import time

import cv2
import numpy as np
import torch
import torch.distributed as dist
from scenes import CLASSES, scene
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class StreetScenes(Dataset):
    """Images and the classes of their pixels."""

    def __init__(self, count):
        self.count = count
        self.files = [scene(number) for number in range(24)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        jpeg, png = self.files[index % len(self.files)]
        image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        classes = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
        image = torch.from_numpy(image).permute(2, 0, 1).float() / 255
        return distort(image), torch.from_numpy(classes).long()


def distort(image):
    """Vary contrast and light, then normalise."""
    for _ in range(4):
        contrast, light = 1 + 0.2 * torch.rand(1), 0.1 * torch.rand(1)
        image = (image * contrast + light).clamp(0, 1)
    return (image - MEAN) / STD


class SceneLoader(DataLoader):
    """The loader of this project: its workers use the whole machine."""

    def __init__(self, dataset, **arguments):
        super().__init__(dataset, worker_init_fn=use_all_cores, **arguments)


def use_all_cores(_worker):
    """Prepare each scene with all cores."""
    torch.set_num_threads(os.cpu_count())


class Segmenter(nn.Module):
    """A small network on a device that needs its time for a step."""

    def __init__(self, step_ms):
        super().__init__()
        self.step_ms = step_ms
        self.layers = nn.Conv2d(3, CLASSES, 1)

    def forward(self, image):
        """Return the logits of every sixteenth pixel."""
        time.sleep(self.step_ms / 1000)
        return self.layers(image[:, :, ::16, ::16])


def main():
    """Train one epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=80)
    args = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    model = Segmenter(args.step_ms)
    sampler = None
    data = StreetScenes(args.steps * args.batch_size * ranks)
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    loader = SceneLoader(
        data, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for image, classes in loader:
        loss = nn.functional.cross_entropy(model(image), classes[:, ::16, ::16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
