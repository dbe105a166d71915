import argparse
import time
from enum import Enum
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Summary(Enum):
    NONE = 0
    AVERAGE = 1


class AverageMeter:
    def __init__(self, name, fmt=":f", summary_type=Summary.AVERAGE):
        self.name, self.fmt, self.summary_type = name, fmt, summary_type
        self.val = self.sum = self.count = 0.0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(
            name=self.name, val=self.val, avg=self.avg
        )


class ProgressMeter:
    def __init__(self, num_batches, meters, prefix=""):
        self.num_batches, self.meters, self.prefix = num_batches, meters, prefix

    def display(self, batch):
        print("\t".join([f"{self.prefix}[{batch}/{self.num_batches}]", *map(str, self.meters)]))


class Folder(Dataset):
    def __init__(self, root, train):
        self.paths, self.train = sorted(Path(root).glob("*/*.jpg")), train

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            image.draft("RGB", (128, 128))
            pixels = np.asarray(image.convert("RGB").resize((112, 112)))
        if self.train and np.random.rand() < 0.5:
            pixels = pixels[:, ::-1]
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div(255)
        return tensor, int(self.paths[index].parent.name[-2:])


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1)
        correct = pred.eq(target[:, None])
        return [correct[:, :k].any(1).float().mean().item() * 100 for k in topk]


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    batch_time, data_time = AverageMeter("Time", ":6.3f"), AverageMeter("Data", ":6.3f")
    losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    meters = [batch_time, data_time, losses, top1]
    progress = ProgressMeter(len(train_loader), meters, prefix=f"Epoch: [{epoch}]")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target)[0], images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i)
    return batch_time.sum


def validate(val_loader, model, criterion, device):
    losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output = model(images.to(device))
            losses.update(criterion(output, target.to(device)).item(), images.size(0))
            top1.update(accuracy(output, target.to(device))[0], images.size(0))
    print(f" * Acc@1 {top1.avg:.3f} Loss {losses.avg:.3f}")


def main():
    parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("-j", "--workers", default=2, type=int)
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("-b", "--batch-size", default=8, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("-p", "--print-freq", default=10, type=int)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaders = [
        DataLoader(
            Folder(f"{args.data}/{split}", split == "train"),
            batch_size=args.batch_size,
            shuffle=split == "train",
            num_workers=args.workers,
            persistent_workers=True,
        )
        for split in ("train", "val")
    ]
    net = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(147, 10))
    model = Accelerated(net, step_ms=70).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    seconds = 0.0
    for epoch in range(args.epochs):
        seconds += train(loaders[0], model, criterion, optimizer, epoch, device, args)
        scheduler.step()
    validate(loaders[1], model, criterion, device)
    print(f"{args.epochs * len(loaders[0].dataset) / seconds:.1f} images/s")


if __name__ == "__main__":
    main()
