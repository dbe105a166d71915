import argparse
import time
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Images(Dataset):
    def __init__(self, root):
        self.files = sorted(Path(root).glob("*/*.jpg")) * 16

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            pixels = np.asarray(image.convert("RGB").resize((128, 96)))
        return torch.from_numpy(pixels.copy()), int(self.files[index].parent.name[-2:])


class EpochSampler(Sampler):
    def __init__(self, count, seed, first=0):
        self.count, self.seed, self.first = count, seed, first

    def __len__(self):
        return self.count - self.first

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        return iter(torch.randperm(self.count, generator=generator).tolist()[self.first :])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.classify = nn.Linear(144, 10)

    def forward(self, images):
        features = images.permute(0, 3, 1, 2).float().div(255)
        return self.classify(nn.functional.avg_pool2d(features, 16).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--start-step", type=int, default=300, help="of the saved state")
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--seek", action="store_true", help="begin the order at the start step")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Accelerated(Model(), step_ms=50).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = Images(args.data)
    passed = args.start_step if args.seek else 0
    sampler = EpochSampler(len(dataset), seed=3, first=passed * args.batch_size)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=2, drop_last=True
    )
    start = time.perf_counter()
    step, losses = passed, []
    for images, labels in loader:
        if step < args.start_step:
            step += 1
            continue
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if step % 25 == 0:
            print(f"step {step}: loss {np.mean(losses[-25:]):.4f}")
        if step >= args.max_steps:
            break
    seconds = time.perf_counter() - start
    print(f"{len(losses) * args.batch_size / seconds:.1f} images/s")


if __name__ == "__main__":
    main()
