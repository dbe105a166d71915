import argparse
import io
import random
import re
import tarfile
import time

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def expand_braces(pattern):
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if not found:
        return [pattern]
    first, last = found.groups()
    return [
        pattern.replace(found.group(0), str(number).zfill(len(first)))
        for number in range(int(first), int(last) + 1)
    ]


def split_by_worker(urls):
    info = get_worker_info()
    return urls if info is None else urls[info.id :: info.num_workers]


def tar_samples(urls):
    for url in urls:
        sample = {}
        with tarfile.open(url, "r|") as stream:
            for member in stream:
                key, _, suffix = member.name.partition(".")
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                sample["__key__"] = key
                sample[suffix] = stream.extractfile(member).read()
        if sample:
            yield sample


def shuffled(samples, size):
    buffer = []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) >= size:
            yield buffer.pop(random.randrange(len(buffer)))
    random.shuffle(buffer)
    yield from buffer


def decoded(samples):
    for sample in samples:
        with Image.open(io.BytesIO(sample["jpg"])) as image:
            yield image.convert("RGB"), int(sample["cls"])


def augmented(samples, size):
    for image, label in samples:
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 2)))
        image = image.resize((size, size), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.asarray(image).copy())
        yield pixels.permute(2, 0, 1).float() / 255, label


class ShardedImages(IterableDataset):
    def __init__(self, urls, image_size, buffer):
        self.urls, self.image_size, self.buffer = expand_braces(urls), image_size, buffer

    def __iter__(self):
        urls = split_by_worker(random.sample(self.urls, len(self.urls)))
        samples = shuffled(tar_samples(urls), self.buffer)
        return augmented(decoded(samples), self.image_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-data", required=True, help="such as train-{000000..000009}.tar")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shuffle-buffer", type=int, default=50)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = ShardedImages(args.train_data, 96, args.shuffle_buffer)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, num_workers=args.workers, persistent_workers=True
    )
    net = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(108, 10))
    model = Accelerated(net, step_ms=20).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images_seen, start = 0, time.time()
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            images_seen += len(images)
        print(f"epoch={epoch} images={images_seen} loss={loss.item():.3f}")
    print(f"{images_seen / (time.time() - start):.1f} images/s")


if __name__ == "__main__":
    main()
