"""Stage 1 of self-training: pseudo labels for all tiles. No optimizer here."""
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from seg import tiles
from seg.export import CocoWriter
from seg.predictor import Predictor, Segmenter


def pseudo_label(batches):
    with tempfile.TemporaryDirectory() as folder:
        data = tiles.Tiles(tiles.write(folder), batches * 8)
        loader = DataLoader(data, batch_size=8, num_workers=2)
        with CocoWriter(Path(folder) / "labels.rle") as writer:
            for names, masks in Predictor(Segmenter(), loader):
                writer.add(names, masks)
        print(len(writer.names), "tiles")


if __name__ == "__main__":
    torch.set_num_threads(1)
    pseudo_label(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
