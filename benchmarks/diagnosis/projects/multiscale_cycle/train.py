import argparse
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

from data.batching import MultiScaleBatchSampler, cycle
from data.mosaic import MosaicDataset, paint
from models.detector import Detector
from utils.ema import WarmEma


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=400)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--sides", type=int, nargs="+", default=[48, 64, 80])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-mosaic", dest="mosaic", action="store_false")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="mosaic_") as root:
        paint(root, args.images)
        loader = DataLoader(
            MosaicDataset(root, mosaic=args.mosaic),
            batch_sampler=MultiScaleBatchSampler(args.images, args.batch_size, args.sides),
            num_workers=args.workers,
            persistent_workers=args.workers > 0,
        )
        model = Detector()
        ema = WarmEma(model)
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

        samples, start = 0, time.time()
        batches = cycle(loader)
        bar = tqdm(range(args.iters), mininterval=1.0)
        for _ in bar:
            images, targets = next(batches)
            loss = F.binary_cross_entropy_with_logits(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.step(model)
            samples += len(images)
            bar.set_postfix(loss=f"{loss.item():.3f}", side=images.shape[-1], refresh=False)
        print(f"rate: {samples / (time.time() - start):.1f} samples/s")
        print("done")


if __name__ == "__main__":
    main()
