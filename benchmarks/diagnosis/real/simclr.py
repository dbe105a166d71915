import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image, ImageEnhance, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="SimCLR")
parser.add_argument("-data", metavar="DIR", required=True)
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("--epochs", default=8, type=int)
parser.add_argument("-b", "--batch-size", default=8, type=int)
parser.add_argument("--temperature", default=0.07, type=float)
parser.add_argument("--n-views", default=2, type=int)
parser.add_argument("--log-every-n-steps", default=20, type=int)


class SimCLRTransform:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        width, height = image.size
        side = int(min(width, height) * random.uniform(0.4, 1))
        left, top = random.randint(0, width - side), random.randint(0, height - side)
        image = image.resize((self.size, self.size), box=(left, top, left + side, top + side))
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        if random.random() < 0.8:
            image = ImageEnhance.Brightness(image).enhance(random.uniform(0.6, 1.4))
            image = ImageEnhance.Color(image).enhance(random.uniform(0.6, 1.4))
        if random.random() < 0.2:
            image = ImageOps.grayscale(image).convert("RGB")
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


class ContrastiveLearningViewGenerator:
    def __init__(self, base_transform, n_views=2):
        self.base_transform, self.n_views = base_transform, n_views

    def __call__(self, x):
        return [self.base_transform(x) for _ in range(self.n_views)]


class ContrastiveDataset(Dataset):
    def __init__(self, root, transform):
        self.paths = sorted(Path(root).glob("*/*.jpg"))
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


class SimCLR:
    def __init__(self, model, optimizer, scheduler, device, args):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.device, self.args = device, args
        self.criterion = nn.CrossEntropyLoss().to(device)

    def info_nce_loss(self, features):
        batch = len(features) // self.args.n_views
        labels = torch.arange(batch, device=self.device).repeat(self.args.n_views)
        same = labels[:, None] == labels[None, :]
        features = nn.functional.normalize(features, dim=1)
        similarity = features @ features.T
        off_diagonal = ~torch.eye(len(labels), dtype=torch.bool, device=self.device)
        same = same[off_diagonal].view(len(labels), -1)
        similarity = similarity[off_diagonal].view(len(labels), -1)
        positives = similarity[same].view(len(labels), -1)
        negatives = similarity[~same].view(len(labels), -1)
        logits = torch.cat([positives, negatives], dim=1) / self.args.temperature
        return logits, torch.zeros(len(logits), dtype=torch.long, device=self.device)

    def train(self, train_loader):
        n_iter, start = 0, time.time()
        for epoch in range(self.args.epochs):
            for images in train_loader:
                features = self.model(torch.cat(images, dim=0).to(self.device))
                logits, labels = self.info_nce_loss(features)
                loss = self.criterion(logits, labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if n_iter % self.args.log_every_n_steps == 0:
                    print(f"{n_iter}: loss {loss.item():.3f}")
                n_iter += 1
            if epoch >= 1:
                self.scheduler.step()
        print(f"{n_iter * self.args.batch_size / (time.time() - start):.1f} images/s")


def main():
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    views = ContrastiveLearningViewGenerator(SimCLRTransform(96), args.n_views)
    train_loader = DataLoader(
        ContrastiveDataset(args.data, views),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )
    net = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(108, 32))
    model = Accelerated(net, step_ms=30).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 3e-4, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(train_loader))
    SimCLR(model, optimizer, scheduler, device, args).train(train_loader)


if __name__ == "__main__":
    main()
