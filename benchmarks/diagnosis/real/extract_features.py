import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ImageListDataset(Dataset):
    def __init__(self, root, median):
        self.paths = sorted(Path(root).rglob("*.jpg")) * 4
        self.median = median

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB").resize((112, 112))
        if self.median:
            image = image.filter(ImageFilter.MedianFilter(self.median))
        x = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float()
        return (x / 255 - 0.45) / 0.225, str(self.paths[i])


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 16, stride=16)
        self.projection = nn.Linear(16, 64)

    def forward(self, x):
        return nn.functional.normalize(self.projection(self.conv(x).mean((2, 3))), dim=1)


@torch.inference_mode()
def extract(model, loader, device):
    features, names = [], []
    for x, paths in loader:
        features.append(model(x.to(device)).cpu().numpy())
        names.extend(paths)
    return np.concatenate(features), names


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description="Write the features of all images of a folder")
    ap.add_argument("images")
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--num-workers", type=int, default=2)
    ap.add_argument("--median", type=int, default=5, help="size of the filter; 0: none")
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        ImageListDataset(args.images, args.median),
        batch_size=args.batch_size,
        num_workers=args.num_workers,
    )
    model = Accelerated(Backbone(), step_ms=35).to(device).eval()
    t0 = time.time()
    features, names = extract(model, loader, device)
    print(f"{len(names) / (time.time() - t0):.1f} images/s")
    with tempfile.TemporaryDirectory() as out:
        np.savez(Path(out) / "features.npz", features=features, names=names)
