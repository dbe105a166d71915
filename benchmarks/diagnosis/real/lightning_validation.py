import argparse
import logging
import time
from pathlib import Path

import lightning as L
import numpy as np
import torch
from emulated import Accelerated
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Thumbnails(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*/*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((160, 120), Image.Resampling.BICUBIC))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), int(path.parent.name[-2:])


class ImageDataModule(L.LightningDataModule):
    def __init__(self, data_dir, batch_size, num_workers, val_workers):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        self.train_set = Thumbnails(Path(self.hparams.data_dir, "train"))
        self.val_set = Thumbnails(Path(self.hparams.data_dir, "val"))

    def train_dataloader(self):
        return DataLoader(
            self.train_set,
            self.hparams.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=self.hparams.num_workers,
            persistent_workers=True,
        )

    def val_dataloader(self):
        return DataLoader(
            self.val_set,
            self.hparams.batch_size,
            num_workers=self.hparams.val_workers,
            persistent_workers=self.hparams.val_workers > 0,
        )


class LitClassifier(L.LightningModule):
    def __init__(self, lr=1e-3, classes=10):
        super().__init__()
        self.save_hyperparameters()
        net = nn.Sequential(nn.AvgPool2d(20), nn.Flatten(), nn.Linear(144, classes))
        self.net = Accelerated(net, step_ms=30)

    def forward(self, images):
        return self.net(images.float() / 255)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.log("val_acc", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Throughput(L.Callback):
    def on_train_start(self, trainer, pl_module):
        self.started, self.samples = time.perf_counter(), 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.samples += len(batch[1])

    def on_train_end(self, trainer, pl_module):
        print(f"{self.samples / (time.perf_counter() - self.started):.1f} samples/s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--val-workers", type=int, default=0)
    parser.add_argument("--max-epochs", type=int, default=3)
    parser.add_argument("--val-check-interval", type=float, default=0.25)
    args = parser.parse_args()
    L.seed_everything(1)
    datamodule = ImageDataModule(args.data_dir, args.batch_size, args.num_workers, args.val_workers)
    trainer = L.Trainer(
        max_epochs=args.max_epochs,
        val_check_interval=args.val_check_interval,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        callbacks=[Throughput()],
    )
    trainer.fit(LitClassifier(), datamodule=datamodule)


if __name__ == "__main__":
    main()
