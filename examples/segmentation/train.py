"""Train SegFormer on pairs of images and masks, from any URL, on all devices.

    headrace data pack CITYSCAPES s3://bucket/cityscapes/train --split train
    headrace data pack CITYSCAPES s3://bucket/cityscapes/val --split val
    headrace run examples/segmentation/train.py --data s3://bucket/cityscapes

labels.json says which of Cityscapes' label ids are trained, and as which class.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torchmetrics.classification import MulticlassConfusionMatrix
from transformers import SegformerConfig, SegformerForSemanticSegmentation

import headrace
from headrace import transforms

IGNORED = 255
LABELS = json.loads(Path(__file__).with_name("labels.json").read_text())
CLASSES = {label["train_id"]: label["name"] for label in LABELS}
TRAIN_IDS = np.full(256, IGNORED, np.uint8)
for label in LABELS:
    TRAIN_IDS[label["label_id"]] = label["train_id"]


class Pair:
    """A sample as packed -> image uint8[H, W, 3] and mask of train ids uint8[H, W]."""

    def __init__(self, crop: tuple[int, int] | None = None) -> None:
        self.crop = transforms.JointScaleCropFlip(crop, scale=(0.5, 1.5)) if crop else None
        self.jitter = transforms.ColorJitter(0.3, 0.3, 0.3)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Crop and recolour where this is for training."""
        image = sample["jpg" if "jpg" in sample else "image.png"]  # so called where both are PNG
        mask = TRAIN_IDS[sample["png"][:, :, 0]]
        if self.crop:
            image, mask = self.crop(image, mask)
            image = self.jitter(image)
        return {"image": image, "mask": mask}


def loader(args: argparse.Namespace, split: str, device: torch.device) -> headrace.DataLoader:
    """Return batches: cropped and shuffled for training, whole and in order otherwise."""
    training = split == "train"
    pair = Pair(tuple(args.crop) if training else None)
    return headrace.DataLoader(
        headrace.ShardDataset(f"{args.data}/{split}", pair, cache_dir=args.cache),
        args.batch_size,
        shuffle=training,
        drop_last=training,
        seed=args.seed,
        device=device,
        device_transform=transforms.Normalize("image"),
    )


def segformer(config: str | None, pretrained: str | None) -> nn.Module:
    """Return SegFormer, pretrained or from its shape alone; its logits are a quarter as large."""
    if pretrained:
        return SegformerForSemanticSegmentation.from_pretrained(
            pretrained, num_labels=len(CLASSES), ignore_mismatched_sizes=True
        )
    shape = SegformerConfig.from_json_file(config) if config else SegformerConfig()
    shape.num_labels = len(CLASSES)
    return SegformerForSemanticSegmentation(shape)


def main() -> None:
    """Train, evaluating and saving as we go."""
    args = parse()
    torch.manual_seed(args.seed)
    model = segformer(args.config, args.pretrained)
    if args.strategy != "fsdp":  # which takes contiguous parameters alone; others are faster so
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = headrace.prepare(model, args.strategy)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
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
                logits = model(pixel_values=batch["image"]).logits
            loss = loss_of(logits, batch["mask"])
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
            **evaluate(model, val, device),
        }
        if train.world.rank == 0:
            log(report)
        if checkpoints:
            checkpoints.save(step, model, optimizer, train)


def loss_of(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy at half size; a class weighs as the root of its rarity here."""
    mask = mask[:, 1::2, 1::2].long()
    logits = interpolate(logits.float(), mask.shape[1:], mode="bilinear", align_corners=False)
    counts = torch.bincount(mask[mask != IGNORED], minlength=len(CLASSES)).float()
    weight = (counts.sum() / counts.clamp(min=1)).sqrt()
    return cross_entropy(logits, mask, weight, ignore_index=IGNORED)


@torch.no_grad()
def evaluate(model: nn.Module, val: Any, device: torch.device) -> dict[str, Any]:
    """Return the mean IoU over the classes that occur in the held-out masks, and each one's."""
    model.eval()
    metric = MulticlassConfusionMatrix(len(CLASSES), ignore_index=IGNORED).to(device)
    for batch in val:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(pixel_values=batch["image"]).logits
        mask = batch["mask"].long()
        logits = interpolate(logits.float(), mask.shape[1:], mode="bilinear", align_corners=False)
        metric.update(logits.argmax(1), mask)
    counts = metric.compute().double()  # of all ranks; rows are true, columns predicted
    union = counts.sum(0) + counts.sum(1) - counts.diag()
    iou = counts.diag() / union.clamp(min=1)
    seen = {name: float(iou[i]) for i, name in CLASSES.items() if counts[i].sum() > 0}
    return {"val_miou": sum(seen.values()) / max(1, len(seen)), "iou": seen}


def schedule(progress: float) -> float:
    """Return the share of the learning rate: a short warm-up, then a straight line to 0."""
    return min(progress / 0.05 + 0.01, (1 - progress) / 0.95)


def log(report: dict[str, Any]) -> None:
    """Print an epoch's figures and append them to metrics.jsonl in the run folder."""
    print(
        f"epoch {report['epoch']}: loss {report['loss']:.3f}, val mIoU {report['val_miou']:.3f}, "
        f"{report['epoch_s']:.1f} s, {report['images_per_s']:.1f} images/s, "
        f"data wait {report['data_wait_share']:.1%}",
        flush=True,
    )
    with (Path(os.environ.get("HEADRACE_RUN_DIR", ".")) / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(report) + "\n")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train SegFormer on images and masks.")
    add = parser.add_argument
    add("--data", required=True, help="URL below which the datasets train and val lie")
    add("--strategy", choices=("ddp", "fsdp", "dp", "none"), default="ddp")
    add("--checkpoints", help="URL to save to; none are saved without it")
    add("--save-every", type=int, default=0, help="steps between checkpoints within an epoch")
    add("--resume", action="store_true", help="go on from the newest checkpoint")
    add("--pretrained", help="folder of a SegFormer to begin with")
    add("--config", help="JSON file with a SegFormer's shape; B0 by default")
    add("--epochs", type=int, default=80)
    add("--batch-size", type=int, default=8, help="of each rank")
    add("--crop", type=int, nargs=2, default=(512, 1024), metavar=("HEIGHT", "WIDTH"))
    add("--lr", type=float, default=6e-4)
    add("--cache", help="folder to keep remote data in, for later epochs and jobs")
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
    if dist.is_initialized():  # here, where the model is gone: gloo can deadlock if it goes last
        dist.destroy_process_group()
