import argparse
import logging
import time
from collections import OrderedDict

import torch
from emulated import Accelerated
from timm.data import Mixup, create_dataset, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy, random_seed, setup_default_logging
from torch import nn

_logger = logging.getLogger("train")

parser = argparse.ArgumentParser(description="Image training")
parser.add_argument("--data-dir", metavar="DIR", required=True)
parser.add_argument("--num-classes", type=int, default=10)
parser.add_argument("--img-size", type=int, default=224)
parser.add_argument("-b", "--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("-j", "--workers", type=int, default=1)
parser.add_argument("--opt", default="adamw")
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--aa", default="rand-m6-mstd0.5-inc1", help="AutoAugment policy")
parser.add_argument("--reprob", type=float, default=0.25)
parser.add_argument("--mixup", type=float, default=0.2)
parser.add_argument("--log-interval", type=int, default=20)
parser.add_argument("--seed", type=int, default=42)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, device, mixup_fn, scheduler):
    losses, batch_time = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    updates = epoch * len(loader)
    for batch_idx, (inputs, target) in enumerate(loader):
        inputs, target = mixup_fn(inputs.to(device), target.to(device))
        loss = loss_fn(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        losses.update(loss.item(), inputs.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        if batch_idx % args.log_interval == 0:
            _logger.info(
                f"Train: {epoch} [{batch_idx:>4d}/{len(loader)}] Loss: {losses.val:#.3g} "
                f"({losses.avg:#.3g}) Time: {batch_time.val:.3f}s"
            )
        scheduler.step_update(num_updates=updates)
    return OrderedDict([("loss", losses.avg), ("time", batch_time.sum)])


def validate(model, loader, device):
    top1 = AverageMeter()
    model.eval()
    with torch.no_grad():
        for inputs, target in loader:
            output = model(inputs.to(device))
            acc1, _ = accuracy(output, target.to(device), topk=(1, 5))
            top1.update(acc1.item(), inputs.size(0))
    return OrderedDict([("top1", top1.avg)])


def create_loaders(args):
    common = {
        "input_size": (3, args.img_size, args.img_size),
        "use_prefetcher": False,
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "num_workers": args.workers,
    }
    dataset_train = create_dataset("", root=f"{args.data_dir}/train", split="train")
    dataset_eval = create_dataset("", root=f"{args.data_dir}/val", split="val")
    loader_train = create_loader(
        dataset_train,
        batch_size=args.batch_size,
        is_training=True,
        auto_augment=args.aa,
        re_prob=args.reprob,
        **common,
    )
    return loader_train, create_loader(dataset_eval, batch_size=40, **common)


def main():
    setup_default_logging()
    args = parser.parse_args()
    random_seed(args.seed, 0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(
        nn.Conv2d(3, 16, 16, stride=16), nn.GELU(), nn.Flatten(), nn.LazyLinear(args.num_classes)
    )
    net(torch.zeros(1, 3, args.img_size, args.img_size))
    model = Accelerated(net, step_ms=15).to(device)
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=args.lr, weight_decay=0.05)
    loader_train, loader_eval = create_loaders(args)
    updates = args.epochs * len(loader_train)
    scheduler = CosineLRScheduler(optimizer, t_initial=updates, t_in_epochs=False)
    mixup_fn = Mixup(mixup_alpha=args.mixup, label_smoothing=0.1, num_classes=args.num_classes)
    loss_fn = SoftTargetCrossEntropy()

    seconds = 0.0
    for epoch in range(args.epochs):
        metrics = train_one_epoch(
            epoch, model, loader_train, optimizer, loss_fn, args, device, mixup_fn, scheduler
        )
        seconds += metrics["time"]
    eval_metrics = validate(model, loader_eval, device)
    _logger.info(f"*** Top-1: {eval_metrics['top1']:.2f}")
    _logger.info(f"*** Train rate: {updates * args.batch_size / seconds:.1f} images/s")


if __name__ == "__main__":
    main()
