import argparse
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--dataroot", required=True)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--batchSize", type=int, default=8)
parser.add_argument("--nz", type=int, default=32, help="size of the latent z vector")
parser.add_argument("--niter", type=int, default=5, help="epochs")
parser.add_argument("--lr", type=float, default=0.0002)
parser.add_argument("--beta1", type=float, default=0.5)
parser.add_argument("--sample-every", type=int, default=10, help="0: no pictures of samples")
parser.add_argument("--manualSeed", type=int, default=999)


class Pictures(Dataset):
    def __init__(self, root, size=32):
        self.paths = sorted(Path(root).glob("*/*.jpg"))
        self.size = size

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            image.draft("RGB", (64, 64))
            image = image.convert("RGB").resize((self.size, self.size))
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        return pixels.float() / 127.5 - 1


def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, 0.0, 0.02)


class Generator(nn.Module):
    def __init__(self, nz):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nz, 64), nn.ReLU(True), nn.Linear(64, 3072), nn.Tanh())

    def forward(self, z):
        return self.main(z).view(-1, 3, 32, 32)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Flatten(), nn.Linear(3072, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1)
        )

    def forward(self, x):
        return self.main(x).view(-1)


def save_samples(images, path, columns=16, scale=2):
    images = ((images.clamp(-1, 1) + 1) * 127.5).byte().permute(0, 2, 3, 1).cpu().numpy()
    rows = [
        np.concatenate(list(images[i : i + columns]), axis=1)
        for i in range(0, len(images), columns)
    ]
    grid = Image.fromarray(np.concatenate(rows))
    grid = grid.resize((grid.width * scale, grid.height * scale), Image.Resampling.NEAREST)
    grid.save(path)


def train_step(real, netG, netD, optimizerG, optimizerD, criterion, nz):
    device = real.device
    ones, zeros = torch.ones(len(real), device=device), torch.zeros(len(real), device=device)
    netD.zero_grad()
    errD_real = criterion(netD(real), ones)
    errD_real.backward()
    fake = netG(torch.randn(len(real), nz, device=device))
    errD_fake = criterion(netD(fake.detach()), zeros)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), ones)
    errG.backward()
    optimizerG.step()
    return errD_real + errD_fake, errG


def main(opt):
    random.seed(opt.manualSeed)
    torch.manual_seed(opt.manualSeed)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dataset = Pictures(opt.dataroot)
    dataloader = DataLoader(
        dataset,
        batch_size=opt.batchSize,
        shuffle=True,
        num_workers=opt.workers,
        drop_last=True,
        persistent_workers=True,
    )
    netG = Accelerated(Generator(opt.nz), step_ms=8).to(device)
    netD = Accelerated(Discriminator(), step_ms=6).to(device)
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(256, opt.nz, device=device)
    optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    iteration, start = 0, time.time()
    with tempfile.TemporaryDirectory() as outf:
        for epoch in range(opt.niter):
            for i, real in enumerate(dataloader):
                errD, errG = train_step(
                    real.to(device), netG, netD, optimizerG, optimizerD, criterion, opt.nz
                )
                if i % 10 == 0:
                    print(f"[{epoch}/{opt.niter}][{i}] Loss_D {errD:.4f} Loss_G {errG:.4f}")
                if opt.sample_every and iteration % opt.sample_every == 0:
                    with torch.no_grad():
                        fake = netG(fixed_noise)
                    save_samples(fake, f"{outf}/fake_{iteration:06d}.png")
                iteration += 1
        print(f"{iteration * opt.batchSize / (time.time() - start):.1f} images/s")


if __name__ == "__main__":
    main(parser.parse_args())
