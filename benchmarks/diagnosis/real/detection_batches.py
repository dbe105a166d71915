import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import torch
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CocoInstances(Dataset):
    def __init__(self, ann_file, *, one_tensor):
        content = json.loads(Path(ann_file).read_text(encoding="utf-8"))
        self.images = content["images"]
        self.annotations = defaultdict(list)
        for annotation in content["annotations"]:
            self.annotations[annotation["image_id"]].append(annotation)
        self.one_tensor = one_tensor

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        height, width = image["height"], image["width"]
        pixels = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
        boxes, masks, labels = [], [], []
        for annotation in self.annotations[image["id"]]:
            left, top, w, h = annotation["bbox"]
            mask = torch.zeros(height // 4, width // 4, dtype=torch.uint8)
            mask[top // 4 : (top + h) // 4, left // 4 : (left + w) // 4] = 1
            boxes.append(torch.tensor([left, top, left + w, top + h], dtype=torch.float32))
            masks.append(mask)
            labels.append(annotation["category_id"])
        if self.one_tensor:
            boxes, masks = torch.stack(boxes), torch.stack(masks)
        target = {"boxes": boxes, "masks": masks, "labels": torch.tensor(labels)}
        return pixels, target


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


class Detector(nn.Module):
    def __init__(self, classes=21):
        super().__init__()
        self.backbone = nn.Sequential(nn.AvgPool2d(32), nn.Conv2d(3, 8, 1), nn.ReLU())
        self.box_head, self.class_head = nn.LazyLinear(4), nn.LazyLinear(classes)

    def forward(self, images, targets):
        losses = {"loss_box": 0.0, "loss_classifier": 0.0}
        for image, target in zip(images, targets, strict=True):
            features = self.backbone(image.float() / 255).flatten()
            labels = target["labels"]
            wanted = torch.stack(list(target["boxes"])).mean(0) / 256
            losses["loss_box"] += nn.functional.l1_loss(self.box_head(features), wanted)
            logits = self.class_head(features).expand(len(labels), -1)
            losses["loss_classifier"] += nn.functional.cross_entropy(logits, labels)
        return losses


def to_device(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: to_device(part, device) for name, part in value.items()}
    return [to_device(part, device) for part in value]


def main():
    parser = argparse.ArgumentParser(description="Detection training")
    parser.add_argument("--ann-file", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one-tensor", action="store_true", help="all instances in one tensor")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = CocoInstances(args.ann_file, one_tensor=args.one_tensor)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=collate_fn,
        persistent_workers=True,
        drop_last=True,
    )
    detector = Detector()
    sample, target = dataset[0]
    detector([sample], [target])
    model = Accelerated(detector, step_ms=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    start = time.time()
    for epoch in range(args.epochs):
        for images, targets in loader:
            loss_dict = model(to_device(images, device), to_device(targets, device))
            losses = sum(loss for loss in loss_dict.values())
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
        print(f"Epoch {epoch}: loss {losses.item():.3f}")
    images = args.epochs * len(loader) * args.batch_size
    print(f"Training: {images / (time.time() - start):.1f} images/s")


if __name__ == "__main__":
    main()
