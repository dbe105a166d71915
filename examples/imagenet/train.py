"""Train ResNet-50 or ViT to classify images, from class folders or shards at any URL.

    headrace data pack IMAGENET/train s3://bucket/imagenet/train --resize-short 512
    headrace data pack IMAGENET/val s3://bucket/imagenet/val --classes-from s3://bucket/imagenet/train
    headrace run examples/imagenet/train.py --data s3://bucket/imagenet

`headrace data index` in place of `pack` reads the files where they lie.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import headrace
from headrace import transforms


def transform(size: int, *, training: bool) -> transforms.OnMembers:
    """Return what turns a sample's image into uint8[size, size, 3]."""
    if not training:
        return transforms.OnMembers("jpg", transforms.CenterCrop(size))
    crop = transforms.RandomResizedCrop(size, exact=False)
    chain = transforms.Compose([crop, transforms.RandomHorizontalFlip()])
    return transforms.OnMembers("jpg", chain)


def loader(args: argparse.Namespace, split: str, device: torch.device) -> headrace.DataLoader:
    """Return batches: cropped at random and shuffled for training, the middle and in order else."""
    training = split == "train"
    change = transform(args.size, training=training)
    return headrace.DataLoader(
        headrace.ShardDataset(f"{args.data}/{split}", change, cache_dir=args.cache),
        args.batch_size,
        shuffle=training,
        drop_last=training,
        seed=args.seed,
        device=device,
        device_transform=transforms.Normalize("jpg"),
    )


def network(name: str, pretrained: str | None, classes: int, size: int) -> nn.Module:
    """Return the network, pretrained or new."""
    kind: Any = {"resnet50": ResNetForImageClassification, "vit": ViTForImageClassification}[name]
    shape = ResNetConfig() if name == "resnet50" else ViTConfig(image_size=size)
    shape.num_labels = classes
    model: nn.Module = (
        kind.from_pretrained(pretrained, num_labels=classes, ignore_mismatched_sizes=True)
        if pretrained
        else kind(shape)
    )
    return model


def main() -> None:
    """Train, evaluating and saving as we go."""
    args = parse()
    torch.manual_seed(args.seed)
    classes = args.classes or len(
        headrace.ShardDataset(f"{args.data}/train").index.manifest.classes
    )
    model = network(args.model, args.pretrained, classes, args.size)
    if args.strategy != "fsdp":  # which takes contiguous parameters alone; others are faster so
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = headrace.prepare(model, args.strategy)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=True)
    train, val = loader(args, "train", device), loader(args, "val", device)
    checkpoints = headrace.Checkpointer(args.checkpoints) if args.checkpoints else None
    step, last_step = 0, args.epochs * len(train)
    if args.resume and checkpoints and (restored := checkpoints.restore(model, optimizer, train)):
        step = restored.step
        print(f"resumed at step {step}, in epoch {train.epoch}", flush=True)

    for epoch in range(train.epoch, args.epochs):
        begin, losses = time.perf_counter(), list[torch.Tensor]()
        train.stats().reset()
        model.train()
        for batch in train:
            for group in optimizer.param_groups:
                group["lr"] = args.lr * schedule(step / last_step)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(pixel_values=batch["jpg"]).logits
            loss = cross_entropy(logits.float(), batch["cls"], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
            step += 1
            if checkpoints and args.save_every and step % args.save_every == 0:
                checkpoints.save(step, model, optimizer, train)
        seconds, stats = time.perf_counter() - begin, train.stats()
        report = {
            "epoch": epoch,
            "step": step,
            "loss": float(sum(losses)) / max(1, len(losses)),
            "epoch_s": seconds,
            "images_per_s": stats.samples * train.world.size / seconds,
            "data_wait_share": stats.data_wait_share,
            **evaluate(model, val, device, classes),
        }
        if train.world.rank == 0:
            log(report)
        if checkpoints:
            checkpoints.save(step, model, optimizer, train)


@torch.no_grad()
def evaluate(model: nn.Module, val: Any, device: torch.device, classes: int) -> dict[str, float]:
    """Return top-1 and top-5 accuracy over all held-out images, of all ranks."""
    model.eval()
    metrics = MetricCollection(
        {
            f"val_top{k}": MulticlassAccuracy(classes, top_k=min(k, classes), average="micro")
            for k in (1, 5)
        }
    ).to(device)
    for batch in val:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(pixel_values=batch["jpg"]).logits
        metrics.update(logits.float(), batch["cls"])
    return {name: float(value) for name, value in metrics.compute().items()}


def schedule(progress: float) -> float:
    """Return the share of the learning rate: a short warm-up, then a straight line to 0."""
    return min(progress / 0.05 + 0.01, (1 - progress) / 0.95)


def log(report: dict[str, Any]) -> None:
    """Print an epoch's figures and append them to metrics.jsonl in the run folder."""
    print(
        f"epoch {report['epoch']}: loss {report['loss']:.3f}, top-1 {report['val_top1']:.1%}, "
        f"top-5 {report['val_top5']:.1%}, {report['epoch_s']:.1f} s, "
        f"{report['images_per_s']:.1f} images/s, data wait {report['data_wait_share']:.1%}",
        flush=True,
    )
    with (Path(os.environ.get("HEADRACE_RUN_DIR", ".")) / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(report) + "\n")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train an image classifier.")
    add = parser.add_argument
    add("--data", required=True, help="URL below which the datasets train and val lie")
    add("--model", choices=("resnet50", "vit"), default="resnet50")
    add("--pretrained", help="folder of such a model to begin with")
    add("--classes", type=int, help="how many; by default as the dataset says")
    add("--size", type=int, default=224, help="pixels of a side")
    add("--strategy", choices=("ddp", "fsdp", "dp", "none"), default="ddp")
    add("--checkpoints", help="URL to save to; none are saved without it")
    add("--save-every", type=int, default=0, help="steps between checkpoints within an epoch")
    add("--resume", action="store_true", help="go on from the newest checkpoint")
    add("--epochs", type=int, default=90)
    add("--batch-size", type=int, default=64, help="of each rank")
    add("--lr", type=float, default=1e-3)
    add("--cache", help="folder to keep remote data in, for later epochs and jobs")
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
    if dist.is_initialized():  # here, where the model is gone: gloo can deadlock if it goes last
        dist.destroy_process_group()
