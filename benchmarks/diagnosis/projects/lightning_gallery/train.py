import tempfile

import lightning as L
import torch

from callbacks import Gallery
from datamodule import PicturesModule
from module import LitAutoencoder


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            accumulate_grad_batches=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Gallery(folder)],
        )
        trainer.fit(LitAutoencoder(), datamodule=PicturesModule())


if __name__ == "__main__":
    main()
