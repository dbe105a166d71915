import os
import tempfile
import time

import torch
import torch.nn.functional as F

from ct import options
from ct.dataset import RandomCrops
from ct.loader import DataLoaderX
from ct.model import VolumeNet
from ct.store import VolumeStore, write_store


def make_loader(cfg, path):
    store = VolumeStore(path, locking=cfg.store.locking)
    loader = DataLoaderX(
        RandomCrops(store, cfg.data.crop, cfg.data.repeats),
        batch_size=cfg.loader.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=cfg.loader.num_workers,
        persistent_workers=cfg.loader.num_workers > 0,
    )
    loader.max_prefetch = cfg.loader.max_prefetch
    return loader


@options.main("conf/config.yaml")
def run(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="volumes_") as folder:
        path = os.path.join(folder, "ct.store")
        write_store(path, cfg.data.volumes, cfg.data.shape)
        loader = make_loader(cfg, path)
        model = VolumeNet(cfg.train.device_seconds)
        optimizer = torch.optim.AdamW(model.parameters(), cfg.train.lr)

        samples, start = 0, time.time()
        for epoch in range(cfg.train.epochs):
            running = 0.0
            for volumes, labels in loader:
                loss = F.cross_entropy(model(volumes), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                running += loss.item()
                samples += len(labels)
            print(f"[{epoch}] {running / len(loader):.4f}", flush=True)
        print(f"rate: {samples / (time.time() - start):.1f} samples/s")
        print("done")


if __name__ == "__main__":
    run()
