"""Contact sheets of what the network gets, every so many batches."""
from pathlib import Path

import numpy as np
from lightning.pytorch.callbacks import Callback
from PIL import Image

SIDE = 128


class Gallery(Callback):
    def __init__(self, folder, every_n_batches=20, sheets=5):
        self.folder, self.every, self.sheets = Path(folder), every_n_batches, sheets

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (batch_idx + 1) % self.every == 0:
            self._publish(batch[0], trainer.global_step)

    def _publish(self, pictures, step):
        pixels = ((pictures.clamp(-2, 2) + 2) * 63).byte().permute(0, 2, 3, 1).numpy()
        for number in range(self.sheets):
            self._sheet(np.roll(pixels, number, axis=3)).save(
                self.folder / f"step{step:06d}-{number}.png", compress_level=6
            )

    def _sheet(self, pixels, columns=8):
        rows = -(-len(pixels) // columns)
        sheet = Image.new("RGB", (columns * SIDE, rows * SIDE))
        for i, picture in enumerate(pixels):
            tile = Image.fromarray(np.ascontiguousarray(picture)).resize((SIDE, SIDE), Image.LANCZOS)
            sheet.paste(tile, (i % columns * SIDE, i // columns * SIDE))
        return sheet
