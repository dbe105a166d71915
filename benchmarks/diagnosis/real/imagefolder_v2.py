import argparse
import time

import torch
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2

parser = argparse.ArgumentParser(description="Fine-tune a classifier on a folder of images")
parser.add_argument("data", help="folder with train/ and val/")
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("-b", "--batch-size", default=8, type=int)
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--lr", default=0.01, type=float)
parser.add_argument("--elastic", default=40.0, type=float, help="strength of deformations; 0: none")


def build_transforms(args):
    train = [v2.ToImage(), v2.RandomResizedCrop(128, antialias=True), v2.RandomHorizontalFlip()]
    if args.elastic:
        train.append(v2.ElasticTransform(alpha=args.elastic))
    last = [
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
    val = [v2.ToImage(), v2.Resize(144, antialias=True), v2.CenterCrop(128)]
    return v2.Compose(train + last), v2.Compose(val + last)


def build_model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def accuracy(model, loader, device):
    model.eval()
    right = count = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
            count += len(labels)
    return right / count


def main():
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_transform, val_transform = build_transforms(args)
    train_set = datasets.ImageFolder(f"{args.data}/train", transform=train_transform)
    val_set = datasets.ImageFolder(f"{args.data}/val", transform=val_transform)
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=args.workers > 0,
        drop_last=True,
    )
    val_loader = DataLoader(val_set, batch_size=40, num_workers=args.workers)
    model = Accelerated(build_model(len(train_set.classes)), step_ms=20).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    started, seen = time.time(), 0
    for epoch in range(args.epochs):
        model.train()
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(images)
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    print(f"{seen / (time.time() - started):.1f} images/s")
    print(f"val accuracy {accuracy(model, val_loader, device):.3f}")


if __name__ == "__main__":
    main()
