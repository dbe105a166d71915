import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from timm.utils import AverageMeter

from data.augment import build_train_transform
from data.glyphs import GlyphFolder, make_glyphs
from data.prefetch import data_prefetcher
from models.net import GlyphNet
from utils.schedule import accuracy, adjust_learning_rate


def parse():
    p = argparse.ArgumentParser(description="glyph classification, apex style")
    p.add_argument("-j", "--workers", default=2, type=int)
    p.add_argument("--epochs", default=9, type=int)
    p.add_argument("-b", "--batch-size", default=16, type=int)
    p.add_argument("--images", default=640, type=int)
    p.add_argument("--crop", default=96, type=int)
    p.add_argument("--lr", default=0.05, type=float)
    p.add_argument("--print-freq", default=20, type=int)
    p.add_argument("--no-elastic", dest="elastic", action="store_false")
    p.add_argument("--elastic-alpha", default=60.0, type=float)
    p.add_argument("--elastic-sigma", default=4.0, type=float)
    return p.parse_args()


def train(train_loader, model, criterion, optimizer, epoch, args):
    batch_time, losses, top1 = AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    seen = 0

    prefetcher = data_prefetcher(train_loader)
    input, target = prefetcher.next()
    i = 0
    while input is not None:
        i += 1
        adjust_learning_rate(optimizer, epoch, i, len(train_loader), args.lr)

        output = model(input)
        loss = criterion(output, target)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if i % args.print_freq == 0:
            losses.update(loss.item(), input.size(0))
            top1.update(accuracy(output, target), input.size(0))
            batch_time.update((time.time() - end) / args.print_freq)
            end = time.time()
            print(
                f"Epoch: [{epoch}][{i}/{len(train_loader)}] Time {batch_time.val:.3f} "
                f"Loss {losses.val:.4f} Prec@1 {top1.val:.2f}",
                flush=True,
            )
        seen += input.size(0)
        input, target = prefetcher.next()
    return seen


def main():
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="glyphs_") as root:
        folder = os.path.join(root, "train")
        make_glyphs(folder, args.images, 112)

        model = GlyphNet()
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
        train_loader = DataLoader(
            GlyphFolder(folder, build_train_transform(args)),
            batch_size=args.batch_size,
            shuffle=True,
            num_workers=args.workers,
            persistent_workers=args.workers > 0,
            drop_last=True,
        )

        seen = 0
        start = time.time()
        for epoch in range(args.epochs):
            seen += train(train_loader, model, criterion, optimizer, epoch, args)
        print(f"rate: {seen / (time.time() - start):.1f} samples/s")
        print("done")


if __name__ == "__main__":
    main()
