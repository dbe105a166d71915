"""Learn with Lightning from two views of photographs of two cameras; workers keep up."""

import logging
import tempfile

import cv2
import lightning
import torch
from emulated import Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

torch.set_num_threads(1)


class Camera(Dataset):
    """Two views of each photograph of a camera: left and right half, one of them blurred."""

    def __init__(self, first, count):
        self.files = [jpeg(first + number, 320, 400) for number in range(24)]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = decode(self.files[index % len(self.files)])
        left = cv2.GaussianBlur(image[:, :200], (5, 5), 0)
        right = cv2.flip(image[:, 200:], 1)
        return tuple(torch.from_numpy(cv2.resize(view, (96, 96))) for view in (left, right))


class Contrastive(lightning.LightningModule):
    """An encoder that gives views of one photograph like codes."""

    def __init__(self):
        super().__init__()
        self.encoder = Network(step_ms=40)

    def loss(self, batch):
        """Return how badly the views are matched."""
        codes = nn.functional.normalize(self.encoder(torch.cat(batch) / 255))
        first, second = codes.chunk(2)
        return nn.functional.cross_entropy(
            first @ second.T, torch.arange(len(first)).to(first).long()
        )

    def training_step(self, batch, _index):
        """Return the loss of a batch."""
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True)
        return loss

    def validation_step(self, batch, _index):
        """Note the loss of a batch."""
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        """Return the optimizer and its schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)]


def one_thread(_worker):
    """Keep OpenCV to the worker's own thread."""
    cv2.setNumThreads(0)


def main():
    """Train two epochs."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    options = {"batch_size": 16, "num_workers": 2, "worker_init_fn": one_thread}
    cameras = ConcatDataset([Camera(0, 1_280), Camera(100, 960)])
    train = DataLoader(cameras, shuffle=True, persistent_workers=True, **options)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2,
            devices=1,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Contrastive(), train, DataLoader(Camera(200, 160), **options))


if __name__ == "__main__":
    main()
