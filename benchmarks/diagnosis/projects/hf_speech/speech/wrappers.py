"""Datasets over datasets: each adds one thing to the one below."""
import numpy as np
from torch.utils.data import Dataset

from .features import log_mel, perturb_speed, reverberate, spec_augment


class _Wrapper(Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getattr__(self, name):
        if name in ("inner", "__setstate__", "__getitems__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


class SubsetDataset(_Wrapper):
    def __init__(self, inner, indices):
        super().__init__(inner)
        self.indices = list(indices)

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        return self.inner[self.indices[index]]


class CachedDataset(_Wrapper):
    """Keeps what the dataset below returned: each file is read once."""

    def __init__(self, inner):
        super().__init__(inner)
        self.cache = {}

    def __getitem__(self, index):
        item = self.cache.get(index)
        if item is None:
            item = self.cache[index] = self.inner[index]
        return dict(item)


class AugmentedDataset(_Wrapper):
    def __init__(self, inner, rir_length, seed=0):
        super().__init__(inner)
        self.rng = np.random.default_rng(seed)
        self.rir_length = rir_length

    def __getitem__(self, index):
        item = self.inner[index]
        wave = perturb_speed(item["wave"], self.rng)
        item["wave"] = reverberate(wave, self.rir_length, self.rng)
        return item


class FeatureDataset(_Wrapper):
    def __init__(self, inner, n_frames, n_mels, seed=1):
        super().__init__(inner)
        self.rng = np.random.default_rng(seed)
        self.n_frames = n_frames
        self.n_mels = n_mels

    def __getitem__(self, index):
        item = self.inner[index]
        mel = log_mel(item.pop("wave"), self.n_mels)[: self.n_frames]
        if len(mel) < self.n_frames:
            mel = np.pad(mel, ((0, self.n_frames - len(mel)), (0, 0)))
        item["input_features"] = spec_augment(mel, self.rng)
        return item
