import os
import tempfile

import torch

from core.config import Config
from core.trainer import Trainer
from data.photos import TrainPhotos, ValPhotos, take_photos
from models.net import PhotoNet


def main():
    cfg = Config.from_cli()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="photos_") as root:
        folders = {part: os.path.join(root, part) for part in ("train", "val")}
        take_photos(folders["train"], cfg.train_photos, cfg.side, cfg.classes, seed=1)
        take_photos(folders["val"], cfg.val_photos, cfg.side, cfg.classes, seed=2)
        trainer = Trainer(
            cfg,
            PhotoNet(cfg.classes, cfg.device_seconds),
            TrainPhotos(folders["train"], cfg.input),
            ValPhotos(folders["val"], cfg.input),
        )
        rate = trainer.fit()
        print(f"rate: {rate:.1f} samples/s")
        print("done")


if __name__ == "__main__":
    main()
