import argparse
import tempfile

import torch
import torch.nn as nn
from tqdm import tqdm

from data.dataloaders import create_dataloader
from data.tiles import create_tiles
from models.tiny import Tiny
from utils.general import Profile, load_yaml


def parse_opt():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hyp", default="data/hyp.yaml")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tiles", type=int, default=24000)
    parser.add_argument("--per-epoch", type=int, default=3200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sampling", choices=("draw", "keys"), default="draw")
    return parser.parse_args()


def train(hyp, opt, root):
    model = Tiny().train()
    optimizer = torch.optim.SGD(model.parameters(), hyp["lr0"], hyp["momentum"], nesterov=True)
    loss_fn = nn.CrossEntropyLoss()
    with Profile() as clock:
        train_loader = create_dataloader(root, hyp, opt.batch_size, opt.per_epoch, opt.workers, opt.sampling)
        nb = len(train_loader)
        for epoch in range(opt.epochs):
            mloss = torch.zeros(1)
            pbar = tqdm(enumerate(train_loader), total=nb, mininterval=2.0)
            for i, (imgs, targets) in pbar:
                imgs = imgs / 255.0
                loss = loss_fn(model(imgs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                mloss = (mloss * i + loss.detach()) / (i + 1)
                pbar.set_description(f"{epoch}/{opt.epochs - 1} {mloss.item():.4g}", refresh=False)
    return nb * opt.batch_size * opt.epochs / clock.t


if __name__ == "__main__":
    opt = parse_opt()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="tiles_") as root:
        create_tiles(root, opt.tiles)
        rate = train(load_yaml(opt.hyp), opt, root)
        print(f"rate: {rate:.1f} samples/s")
        print("done")
