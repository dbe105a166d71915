import argparse
import os
import time

import torch
import torch.distributed as dist
from emulated import Accelerated
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Patches(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, 48, generator=generator)


class MaskedAutoencoder(nn.Module):
    def __init__(self, width=64, mask_ratio=0.75):
        super().__init__()
        self.mask_ratio = mask_ratio
        self.encoder = nn.Sequential(nn.Linear(48, width), nn.GELU(), nn.Linear(width, width))
        self.decoder = nn.Linear(width, 48)
        self.mask_token = nn.Parameter(torch.zeros(48))

    def forward(self, patches):
        masked = torch.rand(patches.shape[:2], device=patches.device) < self.mask_ratio
        visible = torch.where(masked[..., None], self.mask_token, patches)
        restored = self.decoder(self.encoder(visible))
        error = (restored - patches).square().mean(-1)
        return (error * masked).sum() / masked.sum().clamp(min=1)


def is_main_process():
    return dist.get_rank() == 0


def main(args):
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(args.seed + dist.get_rank())
    dataset = Patches(args.samples)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(
        dataset,
        sampler=sampler,
        batch_size=args.batch_size,
        num_workers=1,
        drop_last=True,
        persistent_workers=True,
    )
    model = Accelerated(MaskedAutoencoder(), step_ms=60).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.blr, betas=(0.9, 0.95))
    start = time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for patches in loader:
            loss = model(patches.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if is_main_process():
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    if is_main_process():
        seen = args.epochs * len(loader) * args.batch_size * dist.get_world_size()
        print(f"{seen / (time.time() - start):.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser("MAE pre-training")
    parser.add_argument("--batch-size", default=16, type=int)
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--samples", default=1280, type=int)
    parser.add_argument("--blr", default=1e-3, type=float)
    parser.add_argument("--seed", default=0, type=int)
    main(parser.parse_args())
