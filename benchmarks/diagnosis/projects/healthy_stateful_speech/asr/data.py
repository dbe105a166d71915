import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


class Clips(Dataset):
    def __init__(self, count):
        self.frames = np.random.default_rng(0).integers(60, 240, count)
        self.window = np.hanning(400).astype(np.float32)

    def __len__(self):
        return len(self.frames)

    def _features(self, wave, frames):
        pieces = wave[: frames * 160].reshape(frames, 160)
        spectrum = np.abs(np.fft.rfft(np.pad(pieces, ((0, 0), (0, 96))), axis=1)).astype(np.float32)
        return np.log(spectrum[:, :80] + 1e-3)

    def __getitem__(self, i):
        frames = int(self.frames[i])
        wave = np.random.default_rng(i).standard_normal(frames * 160, dtype=np.float32)
        return torch.from_numpy(self._features(wave, frames)), frames


def collate(samples):
    features, lengths = zip(*sorted(samples, key=lambda sample: -sample[1]))
    return {"features": pad_sequence(features, batch_first=True), "lengths": torch.tensor(lengths)}


def loader(batches, batch_size=6):
    return StatefulDataLoader(
        Clips(batches * batch_size), batch_size=batch_size, shuffle=True, num_workers=2, collate_fn=collate
    )
