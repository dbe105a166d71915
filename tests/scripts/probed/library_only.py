"""Training by libraries alone, which a folder holds; prints where warnings came from."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, sys.argv[1])  # as scripts do

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor
from yolish import fit, rebuilt


def show(message, category, file, line, *_):
    sys.stdout.write(f"warned {Path(file).name} {str(message)[:12]}\n")


warnings.showwarning = show
torch.set_num_threads(1)
loader = DataLoader(list(range(4)), batch_size=2)  # a list
rebuilt(loader)
loader = DataLoader(ImageFolder("images", None), batch_size=2)  # given here
rebuilt(loader)
images = ImageFolder("images", Compose([RandomResizedCrop(32), ToTensor()]))
statistics = DataLoader(images, batch_size=4)  # read here
mean = torch.stack([batch.mean() for batch, _ in statistics]).mean()
fit(images, 3)  # called here
