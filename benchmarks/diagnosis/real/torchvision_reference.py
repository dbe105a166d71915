import argparse
import datetime
import time
from collections import defaultdict, deque
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler


class SmoothedValue:
    def __init__(self, window_size=20, fmt="{median:.4f} ({global_avg:.4f})"):
        self.deque = deque(maxlen=window_size)
        self.total, self.count, self.fmt = 0.0, 0, fmt

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    @property
    def global_avg(self):
        return self.total / max(self.count, 1)

    def __str__(self):
        median = torch.tensor(list(self.deque)).median().item()
        return self.fmt.format(median=median, global_avg=self.global_avg, value=self.deque[-1])


class MetricLogger:
    def __init__(self, delimiter="  "):
        self.meters = defaultdict(SmoothedValue)
        self.delimiter = delimiter

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value.item() if isinstance(value, torch.Tensor) else value)

    def __str__(self):
        return self.delimiter.join(f"{name}: {meter}" for name, meter in self.meters.items())

    def log_every(self, iterable, print_freq, header):
        start = end = time.time()
        data_time = SmoothedValue(fmt="{global_avg:.4f}")
        for i, obj in enumerate(iterable):
            data_time.update(time.time() - end)
            yield obj
            if i % print_freq == 0:
                print(self.delimiter.join([header, f"[{i}]", str(self), f"data: {data_time}"]))
            end = time.time()
        print(f"{header} Total time: {datetime.timedelta(seconds=int(time.time() - start))}")


class ClassificationPresetTrain:
    def __init__(self, crop_size, hflip_prob=0.5):
        self.crop_size, self.hflip_prob = crop_size, hflip_prob

    def __call__(self, image):
        image = np.asarray(image.resize((self.crop_size, self.crop_size)))
        if torch.rand(1).item() < self.hflip_prob:
            image = image[:, ::-1].copy()
        return torch.from_numpy(image.copy()).permute(2, 0, 1).float().div(255)


class ImageFolder(Dataset):
    def __init__(self, root, transform):
        self.samples = sorted(Path(root).glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.samples})
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path = self.samples[index]
        with Image.open(path) as image:
            image.draft("RGB", (128, 128))
            return self.transform(image.convert("RGB")), self.classes.index(path.parent.name)


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args):
    model.train()
    metric_logger = MetricLogger()
    header = f"Epoch: [{epoch}]"
    for image, target in metric_logger.log_every(data_loader, args.print_freq, header):
        image, target = image.to(device), target.to(device)
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc1 = (output.argmax(1) == target).float().mean()
        metric_logger.update(loss=loss, acc1=acc1, lr=optimizer.param_groups[0]["lr"])


def evaluate(model, criterion, data_loader, device):
    model.eval()
    metric_logger = MetricLogger()
    with torch.inference_mode():
        for image, target in metric_logger.log_every(data_loader, 100, "Test:"):
            output = model(image.to(device))
            metric_logger.update(loss=criterion(output, target.to(device)))
    print(f"Test: {metric_logger}")


def main(args):
    device = torch.device(args.device)
    dataset = ImageFolder(Path(args.data_path, "train"), ClassificationPresetTrain(112))
    dataset_test = ImageFolder(Path(args.data_path, "val"), ClassificationPresetTrain(112, 0))
    workers = {"num_workers": args.workers, "multiprocessing_context": args.mp_context}
    data_loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=RandomSampler(dataset),
        drop_last=True,
        persistent_workers=args.persistent_workers,
        **workers,
    )
    data_loader_test = DataLoader(
        dataset_test, batch_size=args.batch_size, sampler=SequentialSampler(dataset_test)
    )
    net = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(147, len(dataset.classes)))
    model = Accelerated(net, step_ms=50).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    for epoch in range(args.epochs):
        if epoch == 1:
            start_time = time.time()
        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args)
        lr_scheduler.step()
    images = (args.epochs - 1) * len(data_loader) * args.batch_size
    print(f"Training rate {images / (time.time() - start_time):.1f} images/s")
    evaluate(model, criterion, data_loader_test, device)


def get_args_parser():
    parser = argparse.ArgumentParser(description="Classification training")
    parser.add_argument("--data-path", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-b", "--batch-size", default=8, type=int)
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("-j", "--workers", default=2, type=int)
    parser.add_argument("--mp-context", default="spawn")
    parser.add_argument("--persistent-workers", action="store_true")
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--print-freq", default=10, type=int)
    return parser


if __name__ == "__main__":
    main(get_args_parser().parse_args())
