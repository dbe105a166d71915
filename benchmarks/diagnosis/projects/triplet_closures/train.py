import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse

import numpy as np
import torch

from metric.data import TripletSampler, make_items, triplet_loader
from metric.loop import epochs, fit, step_of
from metric.mining import random_triplets
from metric.model import build_embedder

p = argparse.ArgumentParser()
p.add_argument("--items", type=int, default=2400)
p.add_argument("--classes", type=int, default=24)
p.add_argument("--dim", type=int, default=128)
p.add_argument("--epochs", type=int, default=12)
p.add_argument("--batch-size", type=int, default=60)
p.add_argument("--workers", type=int, default=2)
p.add_argument("--mine-every", type=int, default=1, help="epochs between minings; 0: random triplets")
p.add_argument("--pool", type=int, default=20)


def main():
    o = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    images, labels = make_items(o.items, o.classes, 32)
    bank = rng.standard_normal((o.items, o.dim)).astype(np.float32)
    bank /= np.linalg.norm(bank, axis=1, keepdims=True)

    model = build_embedder(o.dim)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    sampler = TripletSampler(random_triplets(labels, rng))
    loader = triplet_loader(images, sampler, o.batch_size, o.workers)

    fit(
        step_of(model, optimizer, bank),
        epochs(loader, sampler, bank, labels, rng, o.epochs, o.mine_every, o.pool),
    )
    print("done")


if __name__ == "__main__":
    main()
