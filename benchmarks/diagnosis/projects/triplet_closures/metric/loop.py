"""The training as generators and closures."""
import contextlib
import time

import torch
import torch.nn.functional as F

from .mining import mined_triplets
from .model import triplet_loss


def step_of(model, optimizer, bank):
    def step(batch):
        images, indices = batch
        b = images.shape[0]
        embeddings = F.normalize(model(images.flatten(0, 1)), dim=1)
        a, p, n = embeddings.view(b, 3, -1).unbind(1)
        loss = triplet_loss(a, p, n)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank[indices.flatten().numpy()] = embeddings.detach().numpy()
        return loss.detach(), b

    return step


def epochs(loader, sampler, bank, labels, rng, count, mine_every, pool):
    """Yields one iterator of batches an epoch."""
    for epoch in range(count):
        if mine_every and epoch and epoch % mine_every == 0:
            sampler.triplets = mined_triplets(bank, labels, rng, pool)
        yield epoch, iter(loader)


@contextlib.contextmanager
def throughput():
    box = {"samples": 0}
    start = time.time()
    yield box
    print(f"rate: {box['samples'] / (time.time() - start):.1f} samples/s")


def fit(step, epoch_source):
    with throughput() as box:
        for epoch, batches in epoch_source:
            losses = []
            for loss, n in map(step, batches):
                losses.append(loss)
                box["samples"] += n
            print(f"epoch {epoch:2d}  loss {torch.stack(losses).mean():.4f}", flush=True)
