"""A dataset of a library, which calls a transform."""

import torch
from torch.utils.data import Dataset


class ImageFolder(Dataset):
    """Images of a folder."""

    def __init__(self, root, transform):
        self.root, self.transform = root, transform

    def __len__(self):
        return 192

    def __getitem__(self, index):
        return self.transform(torch.full((3, 40, 40), float(index))), index % 3
