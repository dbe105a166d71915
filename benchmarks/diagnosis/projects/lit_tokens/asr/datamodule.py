import os

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class FrameTokens(Dataset):
    """Frames of features and the token of each (an alignment)."""

    def __init__(self, root):
        self.frames = np.load(os.path.join(root, "frames.npy"), mmap_mode="r")
        self.tokens = np.load(os.path.join(root, "tokens.npy"), mmap_mode="r")

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        frames = np.array(self.frames[i], dtype=np.float32)
        frames += np.random.standard_normal(frames.shape).astype(np.float32) * 0.1
        return {"frames": torch.from_numpy(frames), "tokens": torch.from_numpy(self.tokens[i].astype(np.int64))}


class TokenData(L.LightningDataModule):
    def __init__(self, root, utterances=1280, length=96, vocab=40, n_feats=40, batch_size=16, workers=2):
        super().__init__()
        self.root, self.utterances, self.length = root, utterances, length
        self.vocab, self.n_feats = vocab, n_feats
        self.batch_size, self.workers = batch_size, workers

    def prepare_data(self):
        rng = np.random.default_rng(5)
        tokens = rng.integers(0, self.vocab, size=(self.utterances, self.length), dtype=np.int16)
        codes = rng.standard_normal((self.vocab, self.n_feats)).astype(np.float16)
        np.save(os.path.join(self.root, "tokens.npy"), tokens)
        np.save(os.path.join(self.root, "frames.npy"), codes[tokens])

    def train_dataloader(self):
        return DataLoader(
            FrameTokens(self.root),
            batch_size=self.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )
