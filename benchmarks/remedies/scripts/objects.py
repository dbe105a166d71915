"""Photographs in a bucket, an object each; or from a folder of this host, or from shards."""

from pathlib import Path

import boto3
import cv2
import numpy as np
import torch
from options import loader_for, parser, train
from torch.utils.data import Dataset

import headrace


class Bucket:
    """Objects below a URL."""

    def __init__(self, url):
        self.name, _, self.folder = url.removeprefix("s3://").partition("/")
        self.client = None

    def read(self, name):
        """Return an object."""
        if self.client is None:  # a client must not be forked
            self.client = boto3.client("s3")
        answer = self.client.get_object(Bucket=self.name, Key=f"{self.folder}/{name}")
        return answer["Body"].read()


class Folder:
    """The same below a folder."""

    def __init__(self, path):
        self.path = Path(path)

    def read(self, name):
        """Return a file."""
        return (self.path / name).read_bytes()


class Photos(Dataset):
    """Photographs, one by one."""

    def __init__(self, source, photos, count):
        self.source, self.photos, self.count = source, photos, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        number = index % self.photos
        data = self.source.read(f"class_{number % 10:02}/{number:06}.jpg")
        return scaled(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)), number % 10


class Packed(Dataset):
    """Photographs from shards."""

    def __init__(self, url, count):
        self.count, self.samples = count, headrace.ShardDataset(url)

    def __len__(self):
        return self.count

    def __getitems__(self, indices):
        samples = self.samples.__getitems__([index % len(self.samples) for index in indices])
        return [(scaled(sample["jpg"]), sample["cls"]) for sample in samples]


def scaled(image):
    """Return a photograph as the model wants it."""
    image = cv2.resize(image, (128, 96), interpolation=cv2.INTER_AREA)
    return torch.from_numpy(image).permute(2, 0, 1).float().div(255)


if __name__ == "__main__":
    cv2.setNumThreads(0)
    arguments = parser(batch_size=4, step_ms=40.0, steps=70)
    arguments.add_argument("--photos", type=int, default=96)
    arguments.add_argument("--objects", help="URL of their folder in a bucket")
    arguments.add_argument("--files", help="their folder on this host")
    arguments.add_argument("--shards", help="URL of shards of them")
    chosen = arguments.parse_args()
    count = chosen.steps * chosen.batch_size
    if chosen.shards:
        data = Packed(chosen.shards, count)
    else:
        source = Folder(chosen.files) if chosen.files else Bucket(chosen.objects)
        data = Photos(source, chosen.photos, count)
    train(loader_for(data, chosen), chosen)
